//! The machines of throttling against naive models: whole numbers, plain lists, nothing clever.
mod semaphore;
mod turns;
