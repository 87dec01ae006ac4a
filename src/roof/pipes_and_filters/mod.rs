//! Pipes and filters.
mod emit;
mod event;
mod filter;
mod lineage;
mod run;
#[cfg(all(test, not(steadfast_loom)))]
mod tests;

pub use emit::Emit;
pub use event::FilterEvent;
pub use filter::Filter;
pub use lineage::LINEAGE;
