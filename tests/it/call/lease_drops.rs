//! Lease calls dropped at every await point: a name has one holder, and no process is locked out
//! forever.
use std::{cell::Cell, sync::Arc, time::Duration};

use steadfast::{
    backend::sqlite::{Durability, Sqlite, SqliteConfig},
    lease::{Acquired, InMemoryLease, Lease, StoreLease},
    port::FencingToken,
    store::{InMemoryStore, Store},
    testing::{
        drop_at_every_await,
        faults::{FaultClient, FaultConfig, FaultNetwork},
    },
    time::{Clock, ManualClock},
};

const MS: fn(u64) -> Duration = Duration::from_millis;
const TERM: Duration = Duration::from_secs(60);

/// Two leases on the same names, the first behind a slow network.
struct Doors {
    time: ManualClock,
    slow: Arc<dyn Lease>,
    quick: Arc<dyn Lease>,
}

impl Doors {
    fn each(test: impl Fn(&Self)) {
        let over = |store: &dyn Fn(&Clock) -> Arc<dyn Store>| {
            let (clock, time) = Clock::manual();
            let store = store(&clock);
            let behind = Arc::new(line(&clock).store(store.clone()));
            let door = |store| Arc::new(StoreLease::builder(store).clock(&clock).build().unwrap());
            test(&Self { time, slow: door(behind), quick: door(store) });
        };
        over(&|clock| Arc::new(InMemoryStore::builder().clock(clock).build()));
        let folder = tempfile::tempdir().unwrap();
        let config = SqliteConfig::at(folder.path().join("leases.db")).durability(Durability::Relaxed);
        over(&|clock| Arc::new(Sqlite::open_with_clock(config.clone(), clock).unwrap().store()));
        let (clock, time) = Clock::manual();
        let leases: Arc<dyn Lease> = Arc::new(InMemoryLease::builder().clock(&clock).build());
        test(&Self { time, slow: Arc::new(line(&clock).lease(leases.clone())), quick: leases });
    }

    fn granted(&self, door: &Arc<dyn Lease>, holder: &str) -> Option<FencingToken> {
        match self.time.block_on(door.acquire("job", holder, TERM)).unwrap() {
            Acquired::Granted(token) => Some(token),
            Acquired::Held(_) => None,
        }
    }
}

fn line(clock: &Clock) -> FaultClient {
    FaultNetwork::new(FaultConfig::default().latency(MS(1), MS(1)), 1, clock).unwrap().client("a")
}

#[test]
fn a_dropped_acquire_takes_effect_fully_or_not_at_all() {
    Doors::each(|doors| {
        let mut highest = FencingToken::new(0);
        let polls = drop_at_every_await(
            &doors.time,
            || doors.slow.acquire("job", "a", TERM),
            |_| {
                let token = doors.granted(&doors.slow, "a").expect("a holder does not wait for itself");
                assert!(token > highest, "{token} {highest}");
                highest = token;
                assert_eq!(doors.granted(&doors.quick, "b"), None);
            },
        );
        assert!(polls >= 2, "{polls}");
        doors.time.advance(TERM);
        assert!(doors.granted(&doors.quick, "b").is_some_and(|token| token > highest), "no door is shut for ever");
    });
}

#[test]
fn a_dropped_renewal_shortens_no_term_and_revives_none() {
    Doors::each(|doors| {
        let token = doors.granted(&doors.slow, "a").unwrap();
        let renew = || doors.slow.renew("job", "a", token, TERM);
        let polls = drop_at_every_await(&doors.time, renew, |_| {
            assert_eq!(doors.granted(&doors.quick, "b"), None);
            doors.time.advance(TERM / 4);
            assert!(doors.time.block_on(renew()).is_ok(), "the term before goes on");
        });
        assert!(polls >= 2, "{polls}");
        doors.time.advance(TERM);
        drop_at_every_await(&doors.time, renew, |_| {
            assert!(doors.time.block_on(renew()).unwrap_err().is_not_held());
        });
        // A challenger over a store must see the last renewal for a whole term.
        if doors.granted(&doors.quick, "b").is_none() {
            doors.time.advance(TERM);
            assert!(doors.granted(&doors.quick, "b").is_some());
        }
    });
}

#[test]
fn a_dropped_release_takes_effect_fully_or_not_at_all() {
    Doors::each(|doors| {
        let (mut kept, mut released) = (0, 0);
        let polls = drop_at_every_await(
            &doors.time,
            || {
                let token = doors.granted(&doors.slow, "a").unwrap();
                doors.slow.release("job", "a", token)
            },
            |_| match doors.granted(&doors.quick, "b") {
                // The name is free, so it was granted at once, and is released again.
                Some(token) => {
                    released += 1;
                    doors.time.block_on(doors.quick.release("job", "b", token)).unwrap();
                }
                None => kept += 1,
            },
        );
        assert!(polls >= 2 && kept > 0 && released > 0, "{polls} {kept} {released}");
    });
}

#[test]
fn a_dropped_read_changes_nothing() {
    Doors::each(|doors| {
        let token = doors.granted(&doors.quick, "b").unwrap();
        let told = || doors.time.block_on(doors.quick.renew("job", "b", token, TERM)).unwrap().release_requested;
        let looks = drop_at_every_await(&doors.time, || doors.slow.read("job"), |_| assert!(!told()));
        let made = Cell::new(false);
        let polls = drop_at_every_await(
            &doors.time,
            || doors.slow.request_release("job", token),
            |_| {
                assert!(told() || !made.get(), "a request that was made stays made");
                made.set(told());
            },
        );
        assert!(looks >= 2 && polls >= 2 && made.get(), "{looks} {polls}");
    });
}
