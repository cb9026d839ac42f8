//! What people have said about a fleet: which shards are paused, which members drained.
