//! Chapters that are longer than a doc comment.

pub mod fencing {
    #![doc = include_str!("guide/fencing.md")]
}

pub mod testing {
    #![doc = include_str!("guide/testing.md")]
}
