//! A leader that crashes at any of its requests to the leases.
use std::{cell::RefCell, sync::Arc, time::Duration};

use steadfast::{
    entropy::Entropy,
    leader_election::{LeaderElection, LeaderElectionConfig, Term},
    lease::{InMemoryLease, Lease, StoreLease},
    port::FencingToken,
    testing::crash_at_every_write,
    time::Instant,
};

use crate::engines::{Engine, World};

const S: fn(u64) -> Duration = Duration::from_secs;
const TERM: Duration = Duration::from_secs(15);

/// Terms of all nodes, each with the time at which its task ended.
type Served = RefCell<Vec<(FencingToken, Instant, Instant)>>;

/// Campaigns and serves for this time, then hands over.
async fn serve(world: &World, lease: Arc<dyn Lease>, id: &str, seed: u64, time: Duration, served: &Served) {
    struct Ends<'a>(&'a World, &'a Served, FencingToken, Instant);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.1.borrow_mut().push((self.2, self.3, self.0.clock.now()));
        }
    }
    let election = LeaderElection::builder(lease, "job", LeaderElectionConfig::default()).candidate(id);
    let election = election.clock(&world.clock).entropy(&Entropy::from_seed(seed)).build().unwrap();
    let task = |term: Term| async move {
        let _ends = Ends(world, served, term.token(), world.clock.now());
        term.lost().await;
    };
    election.run(world.clock.sleep(time), task).await.unwrap();
}

// Guarantee: leader_election 9.
#[test]
fn after_a_leader_that_crashes_at_any_request_another_is_elected_within_the_term_and_a_poll() {
    for over_store in [false, true] {
        for engine in Engine::ALL {
            if engine == Engine::Sqlite && !over_store {
                continue;
            }
            let requests = crash_at_every_write(|process| {
                let (world, served) = (engine.world(), Served::default());
                let memory: Arc<dyn Lease> = Arc::new(InMemoryLease::builder().clock(&world.clock).build());
                let leases = |store| -> Arc<dyn Lease> {
                    Arc::new(StoreLease::builder(store).clock(&world.clock).build().unwrap())
                };
                let (here, there) = match over_store {
                    true => (leases(process.store(world.store.clone())), leases(world.store.clone())),
                    false => (process.lease(memory.clone()), memory),
                };
                world.run(process.run(serve(&world, here, "a", 1, S(12), &served)));
                let crashed = world.clock.now();
                world.run(serve(&world, there, "b", 2, S(30), &served));
                let served = served.borrow();
                let (token, began, _) = *served.last().unwrap();
                assert!(served.len() <= 2 && began - crashed <= TERM + S(2), "elected after {:?}", began - crashed);
                for (earlier, _, ended) in &served[..served.len() - 1] {
                    assert!(*earlier < token && *ended <= began, "tokens grow, and terms do not overlap");
                }
            });
            assert!(requests >= 4, "{requests}");
        }
    }
}
