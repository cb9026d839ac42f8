//! Chapters that are longer than a doc comment: [`fencing`], for effects that come too late, and [`testing`], for tests of
//! your own code.

pub mod fencing {
    #![doc = include_str!("guide/fencing.md")]
}

pub mod testing {
    #![doc = include_str!("guide/testing.md")]
}
