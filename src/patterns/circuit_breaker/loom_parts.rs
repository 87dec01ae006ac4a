//! A slow start and a registry's limit, each by itself, under every interleaving of two threads.
use loom::{sync::Arc, thread};

use super::{open_limit::OpenLimit, state::Gate, window::ALL};
use crate::time::Instant;

const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

#[test]
fn loom_breaker_a_slow_start_admits_its_share_of_racing_calls() {
    loom::model(|| {
        let gate = Arc::new(Gate::new(true));
        gate.begin_slow_start(NOW);
        let theirs = gate.clone();
        let thread = thread::spawn(move || (0..2).filter(|_| theirs.passes(ALL / 2)).count());
        let ours = (0..2).filter(|_| gate.passes(ALL / 2)).count();
        assert_eq!(ours + thread.join().unwrap(), 2);
    });
}

#[test]
fn loom_breaker_a_registry_opens_at_most_its_share() {
    loom::model(|| {
        let limit = Arc::new(OpenLimit::new(0.5));
        (0..3).for_each(|_| limit.add_member()); // of three, one
        let theirs = limit.clone();
        let thread = thread::spawn(move || theirs.try_open());
        let ours = limit.try_open();
        assert!(ours ^ thread.join().unwrap());
        assert_eq!(limit.open(), 1);
        limit.count_closed();
        assert!(limit.try_open());
    });
}
