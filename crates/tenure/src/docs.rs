//! Chapters that are too long for a doc comment: [`fencing`], for effects that come too late; [`observability`], for labels, JSON,
//! metrics and traces; [`testing`], for tests of your own code; [`stores`], for authors of stores; [`parts`], for authors of
//! stores and of tools that read leases.

pub mod fencing {
    #![doc = include_str!("docs/fencing.md")]
}

pub mod observability {
    #![doc = include_str!("docs/observability.md")]
}

pub mod testing {
    #![doc = include_str!("docs/testing.md")]
}

pub mod stores {
    #![doc = include_str!("docs/stores.md")]
    #![doc = "```"]
    #![doc = include_str!("../examples/bucket_store.rs")]
    #![doc = "```"]
}

pub mod parts {
    #![doc = include_str!("docs/parts.md")]
}
