//! Chapters that are too long for a doc comment.
//!
//! | chapter | for |
//! |---|---|
//! | [`blocking`] | synchronous work: threads, loops, blocking calls |
//! | [`waiters`] | several tasks that work in one term |
//! | [`cancellation`] | what dropping each future does |
//! | [`checkpoints`] | what `save` guarantees: order, repetition, deadline |
//! | [`fencing`] | effects of an earlier leader that come too late |
//! | [`threads`] | the threads and connections of elections and fleets |
//! | [`observability`] | labels, JSON, metrics and traces |
//! | [`testing`] | tests of your own code |
//! | [`other_tools`] | users of kubert, rslock, redlock and etcd-client |
//! | [`stores`] | authors of stores |
//! | [`parts`] | authors of stores and of tools that read leases |

pub mod blocking {
    #![doc = include_str!("docs/blocking.md")]
}

pub mod waiters {
    #![doc = include_str!("docs/waiters.md")]
}

pub mod cancellation {
    #![doc = include_str!("docs/cancellation.md")]
}

pub mod checkpoints {
    #![doc = include_str!("docs/checkpoints.md")]
}

pub mod fencing {
    #![doc = include_str!("docs/fencing.md")]
}

pub mod threads {
    #![doc = include_str!("docs/threads.md")]
}

pub mod observability {
    #![doc = include_str!("docs/observability.md")]
}

pub mod testing {
    #![doc = include_str!("docs/testing.md")]
    #![doc = "```"]
    #![doc = include_str!("../examples/store_wrapper.rs")]
    #![doc = "```"]
}

pub mod other_tools {
    #![doc = include_str!("docs/other_tools.md")]
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
