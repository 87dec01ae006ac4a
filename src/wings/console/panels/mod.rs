//! The read-outs and actions of each kind of component.
#[cfg(feature = "data")]
mod cache;
mod calls;
#[cfg(any(feature = "work", feature = "workflow"))]
mod control;
#[cfg(any(feature = "stream", feature = "work"))]
mod election;
mod keyed;
mod letters;
mod limits;
#[cfg(any(feature = "work", feature = "workflow"))]
mod listener;
mod policies;
mod queue;
#[cfg(feature = "workflow")]
mod saga;
#[cfg(feature = "data")]
mod shards;
#[cfg(feature = "stream")]
mod stream;

pub(super) use queue::{Control, queue};
