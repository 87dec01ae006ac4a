//! Pages to read, part of the documentation alone. Their examples are compiled and run by `cargo
//! test`.
//
// A page links by labels, `[text][crate::retry]`, and defines them at its end for readers of the file. `links.md` comes first,
// and the first definition of a label counts: here the labels are paths, which rustdoc resolves.
#[doc = include_str!("links.md")]
#[doc = include_str!("first_steps.md")]
pub mod first_steps {}
#[doc = include_str!("links.md")]
#[doc = include_str!("patterns.md")]
pub mod patterns {}
#[doc = include_str!("links.md")]
#[doc = include_str!("once.md")]
pub mod once {}
#[doc = include_str!("links.md")]
#[doc = include_str!("cqrs.md")]
pub mod cqrs {}
#[doc = include_str!("links.md")]
#[doc = include_str!("examples.md")]
pub mod examples {}
#[doc = include_str!("links.md")]
#[doc = include_str!("words.md")]
pub mod words {}
#[doc = include_str!("links.md")]
#[doc = include_str!("choosing.md")]
pub mod choosing {}
#[doc = include_str!("links.md")]
#[doc = include_str!("when_not.md")]
pub mod when_not {}
#[doc = include_str!("links.md")]
#[doc = include_str!("coming_from/index.md")]
pub mod coming_from {
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/backon.md")]
    pub mod backon {}
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/tokio_retry.md")]
    pub mod tokio_retry {}
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/tower.md")]
    pub mod tower {}
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/tower_resilience.md")]
    pub mod tower_resilience {}
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/governor.md")]
    pub mod governor {}
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/failsafe.md")]
    pub mod failsafe {}
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/moka.md")]
    pub mod moka {}
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/apalis.md")]
    pub mod apalis {}
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/outbox_table.md")]
    pub mod outbox_table {}
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/polly.md")]
    pub mod polly {}
    #[doc = include_str!("links.md")]
    #[doc = include_str!("coming_from/resilience4j.md")]
    pub mod resilience4j {}
}
#[doc = include_str!("links.md")]
#[doc = include_str!("testing_your_service.md")]
pub mod testing_your_service {}
#[doc = include_str!("links.md")]
#[doc = include_str!("design.md")]
pub mod design {}
#[doc = include_str!("links.md")]
#[doc = include_str!("cancel_safety.md")]
pub mod cancel_safety {}
#[doc = include_str!("links.md")]
#[doc = include_str!("compare.md")]
pub mod compare {}
#[doc = include_str!("links.md")]
#[doc = include_str!("scaling.md")]
pub mod scaling {}
#[doc = include_str!("links.md")]
#[doc = include_str!("stability.md")]
pub mod stability {}
