//! Counting from many threads.
use super::{OWNED, SHARED, Striped};

#[test]
fn no_count_is_lost_with_more_threads_than_cells() {
    let counter = Striped::new();
    std::thread::scope(|scope| {
        for _ in 0..OWNED + 3 * SHARED {
            scope.spawn(|| (0..1000).for_each(|_| counter.increase()));
        }
    });
    assert_eq!(counter.sum(), 1000 * (OWNED + 3 * SHARED) as u64);
}
