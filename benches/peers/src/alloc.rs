//! A counting global allocator: allocations and live bytes, only while a count is open.
//!
//! Timed passes run with the count closed, where it costs one relaxed load of a flag that nobody writes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

struct Counting;

static OPEN: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn note(allocations: u64, bytes: i64) {
    if OPEN.load(Relaxed) {
        ALLOCATIONS.fetch_add(allocations, Relaxed);
        LIVE.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: every method hands its arguments unchanged to `System` and returns what `System` returns.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(1, layout.size() as i64);
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(1, size as i64 - layout.size() as i64);
        unsafe { System.realloc(pointer, layout, size) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        note(0, -(layout.size() as i64));
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// What `work` allocated: how many times, and how many bytes are still live after it.
pub fn count<R>(work: impl FnOnce() -> R) -> (R, u64, i64) {
    ALLOCATIONS.store(0, Relaxed);
    LIVE.store(0, Relaxed);
    OPEN.store(true, Relaxed);
    let answer = work();
    OPEN.store(false, Relaxed);
    (answer, ALLOCATIONS.load(Relaxed), LIVE.load(Relaxed))
}
