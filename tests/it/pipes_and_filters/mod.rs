//! Filters between queues, on a manual clock.
mod attacks;
mod builds;
mod crashes;
mod drops;
mod full;
mod messages;
mod waits;
mod world;
