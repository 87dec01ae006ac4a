//! A counting global allocator: how often and how much a thread allocates, and how much of it is live.
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

struct Counting;

thread_local! {
    // Constants without a destructor: to touch them allocates nothing.
    static TIMES: Cell<u64> = const { Cell::new(0) };
    static BYTES: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn note(times: u64, bytes: usize, live: i64) {
    TIMES.set(TIMES.get() + times);
    BYTES.set(BYTES.get() + bytes as u64);
    LIVE.set(LIVE.get() + live);
}

// SAFETY: every method hands its arguments unchanged to `System` and returns what `System` returns.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size(), layout.size() as i64);
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size(), layout.size() as i64);
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, size, size as i64 - layout.size() as i64);
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, 0, -(layout.size() as i64));
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What some work allocated.
#[derive(Debug, Clone, Copy)]
pub struct Allocated {
    pub times: u64,
    pub bytes: u64,
    /// Bytes that are still live after it.
    pub live: i64,
}

/// Runs `work`, and returns what this thread allocated meanwhile.
pub fn count<R>(work: impl FnOnce() -> R) -> (R, Allocated) {
    let (times, bytes, live) = (TIMES.get(), BYTES.get(), LIVE.get());
    let answer = work();
    (answer, Allocated { times: TIMES.get() - times, bytes: BYTES.get() - bytes, live: LIVE.get() - live })
}
