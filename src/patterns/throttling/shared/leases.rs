//! Leased permits, spent locally until they expire: two words, lock-free.
//!
//! Two words allow the next lease to arrive before the current one has expired.

// Concurrency. Each word holds one complete lease, its expiry and its permits. Each operation reads
// both words and replaces one of them by compare-and-set. A success therefore acts on exactly the
// lease that was read, even if the word changed to another value and back in between.
//
// Invariant: a permit is spent once, and not after its expiry. `spend` subtracts from a word that
// has not expired. `add` replaces a word without usable permits, or adds to the later one without
// extending its expiry. Permits above 24 bits are dropped, never invented.
//
// The two loads are no snapshot of one moment. That may select the other lease, or return an
// outdated sum, and the sum is only a hint when to renew.
//
// `Relaxed` suffices: a permit is a number, and the words publish no other memory.

use crate::sync::{AtomicU64, Line, Ordering};

/// The permits of up to two leases, and the demand, on a line of their own: each call changes both.
pub(super) struct Leases(Line<LeaseLine>);

struct LeaseLine {
    words: [AtomicU64; 2],
    demand: AtomicU64,
}

/// From the top: the millisecond of expiry (40 bits) and the number of permits left (24 bits). Zero
/// is no lease.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LeaseWord(u64);

const PERMITS: u64 = (1 << 24) - 1;
const MILLIS: u64 = (1 << 40) - 1;

impl LeaseWord {
    fn new(ends: u64, permits: u64) -> Self {
        Self(ends.min(MILLIS) << 24 | permits.min(PERMITS))
    }

    fn permits(self) -> u64 {
        self.0 & PERMITS
    }

    fn ends(self) -> u64 {
        self.0 >> 24
    }

    fn left(self, now: u64) -> u64 {
        if now.min(MILLIS) < self.ends() { self.permits() } else { 0 }
    }
}

impl Leases {
    pub(super) fn new() -> Self {
        Self(Line(LeaseLine { words: [AtomicU64::new(0), AtomicU64::new(0)], demand: AtomicU64::new(0) }))
    }

    fn word(&self, i: usize) -> LeaseWord {
        LeaseWord(self.0.0.words[i].load(Ordering::Relaxed))
    }

    /// Counts permits that a call asks for, whether it gets them or not.
    #[inline]
    pub(super) fn count_demand(&self, n: u32) {
        self.0.0.demand.fetch_add(n.into(), Ordering::Relaxed);
    }

    /// Returns the number of permits that calls have asked for since the last time.
    pub(super) fn take_demand(&self) -> u64 {
        self.0.0.demand.swap(0, Ordering::Relaxed)
    }

    /// Spends `n` permits of one lease, preferably of the one that expires first. Returns the
    /// number of permits left in both.
    #[inline]
    pub(super) fn spend(&self, n: u32, now: u64) -> Option<u64> {
        let n = u64::from(n);
        loop {
            let words = [self.word(0), self.word(1)];
            let first = usize::from(words[1] < words[0]);
            let fits = [first, 1 - first].into_iter().find(|i| words[*i].left(now) >= n)?;
            let spent = LeaseWord(words[fits].0 - n);
            // Relaxed: the word publishes no other memory.
            if self.replace(fits, words[fits], spent) {
                return Some(spent.left(now) + words[1 - fits].left(now));
            }
        }
    }

    /// Adds `n` permits that expire at the millisecond `ends`.
    pub(super) fn add(&self, n: u32, ends: u64, now: u64) {
        loop {
            let words = [self.word(0), self.word(1)];
            let free = (0..2).find(|i| words[*i].left(now) == 0);
            let (i, word) = match free {
                Some(i) => (i, LeaseWord::new(ends, n.into())),
                // Both words are in use: the new permits expire no later than those in the later
                // word.
                None => {
                    let later = usize::from(words[1] > words[0]);
                    let ends = ends.min(words[later].ends());
                    (later, LeaseWord::new(ends, words[later].permits() + u64::from(n)))
                }
            };
            if self.replace(i, words[i], word) {
                return;
            }
        }
    }

    /// Returns the number of permits left.
    pub(super) fn left(&self, now: u64) -> u64 {
        self.word(0).left(now) + self.word(1).left(now)
    }

    fn replace(&self, i: usize, old: LeaseWord, new: LeaseWord) -> bool {
        self.0.0.words[i].compare_exchange(old.0, new.0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_ends_first_is_spent_first_and_what_has_ended_is_gone() {
        let leases = Leases::new();
        leases.add(2, 100, 0);
        leases.add(3, 200, 0);
        assert_eq!((leases.spend(1, 50), leases.spend(1, 50), leases.left(50)), (Some(4), Some(3), 3));
        assert_eq!(leases.spend(3, 99), Some(0));
        leases.add(5, 300, 99);
        assert_eq!((leases.left(299), leases.left(300), leases.spend(1, 300)), (5, 0, None));
    }

    proptest! {
        /// A plain list of permits, each with its own expiry, gives at least as many.
        #[test]
        fn no_permit_is_spent_after_its_end_or_twice(
            steps in prop::collection::vec((0u64..40, prop::option::of(1u32..6), 1u32..4), 1..80),
        ) {
            let leases = Leases::new();
            let (mut now, mut model): (u64, Vec<u64>) = (0, Vec::new());
            for (passes, add, n) in steps {
                now += passes;
                model.retain(|ends| *ends > now);
                if let Some(add) = add {
                    leases.add(add, now + 50, now);
                    model.extend(std::iter::repeat_n(now + 50, add as usize));
                }
                prop_assert!(leases.left(now) <= model.len() as u64);
                if leases.spend(n, now).is_some() {
                    prop_assert!(model.len() >= n as usize);
                    model.drain(..n as usize);
                }
            }
        }
    }
}

#[cfg(all(test, steadfast_loom))]
mod tests {
    use super::*;
    use loom::{sync::Arc, thread};

    #[test]
    fn loom_leased_permits_are_spent_once_while_more_come() {
        loom::model(|| {
            let leases = Arc::new(Leases::new());
            leases.add(1, 100, 0);
            let theirs = leases.clone();
            let thread = thread::spawn(move || {
                let spent = theirs.spend(1, 10).is_some();
                theirs.add(1, 200, 10);
                u64::from(spent)
            });
            let ours = u64::from(leases.spend(1, 10).is_some()) + u64::from(leases.spend(1, 10).is_some());
            let spent = ours + thread.join().unwrap();
            assert_eq!(spent + leases.left(10), 2);
        });
    }
}
