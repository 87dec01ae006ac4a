//! Pages to read, part of the documentation alone.
#[doc = include_str!("choosing.md")]
pub mod choosing {}
#[doc = include_str!("design.md")]
pub mod design {}
#[doc = include_str!("cancel_safety.md")]
pub mod cancel_safety {}
#[doc = include_str!("compare.md")]
pub mod compare {}
#[doc = include_str!("stability.md")]
pub mod stability {}
