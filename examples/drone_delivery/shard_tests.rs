//! The ledger over shards behind a slow network: shards fail and are added, movers and whole runs are killed.
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::{
    entropy::Entropy,
    port::BoxFuture,
    sharding::ShardId,
    store::{InMemoryStore, Key, Scan, Store, StoreExt},
    testing::faults::{FaultConfig, FaultNetwork},
    time::{Clock, ManualClock},
};

use crate::{
    ledger::{Entry, Identity, Ledger, State, Unwritten},
    mover::Growth,
    shards::{Traffic, first_map},
};

const RECORDS: usize = 80;
const MS: fn(u64) -> Duration = Duration::from_millis;

/// State that outlives a run: the stores, and the network in front of them.
struct World {
    clock: Clock,
    time: ManualClock,
    network: FaultNetwork,
    own: Arc<InMemoryStore>,
    shards: Arc<Mutex<BTreeMap<ShardId, Arc<InMemoryStore>>>>,
    first: u32,
}

/// One process.
struct Run {
    ledger: Ledger,
    growth: Growth,
    entries: BTreeMap<usize, Entry>,
}

fn slow() -> FaultConfig {
    FaultConfig::default().latency(MS(1), MS(1))
}

impl World {
    fn new(first: u32) -> Self {
        let (clock, time) = Clock::manual();
        Self::on(first, &clock, &time)
    }

    fn on(first: u32, clock: &Clock, time: &ManualClock) -> Self {
        let (clock, time) = (clock.clone(), time.clone());
        let network = FaultNetwork::new(slow(), 1, &clock).unwrap();
        let own = Arc::new(InMemoryStore::builder().clock(&clock).build());
        Self { clock, time, network, own, shards: Arc::default(), first }
    }

    async fn try_start(&self, patience: Duration) -> Result<Run, String> {
        let (network, shards, clock) = (self.network.clone(), self.shards.clone(), self.clock.clone());
        let open = move |id: ShardId| -> BoxFuture<'static, Result<Arc<dyn Store>, _>> {
            let mut shards = shards.lock().unwrap();
            let fresh = || Arc::new(InMemoryStore::builder().clock(&clock).build());
            let store = shards.entry(id).or_insert_with(fresh).clone();
            Box::pin(std::future::ready(Ok(network.client(&id.to_string()).store(store))))
        };
        let job = Identity { input: "input".into(), requests: RECORDS, seed: 1, shards: self.first };
        let store = self.network.client("job").store(self.own.clone());
        let entropy = Entropy::from_seed(1);
        let (ledger, growth, _) = crate::open(&job, &store, Box::new(open), patience, &self.clock, &entropy).await?;
        let fresh = (0..RECORDS).map(|place| (place, State::Received)).collect();
        let entries = ledger.take_up(fresh, patience).await?;
        Ok(Run { ledger, growth, entries })
    }

    async fn start(&self) -> Run {
        self.try_start(MS(10_000)).await.unwrap()
    }

    /// Returns every record of the shards' stores.
    async fn records(&self) -> Vec<(ShardId, String, State)> {
        let shards: Vec<_> = self.shards.lock().unwrap().iter().map(|(id, store)| (*id, store.clone())).collect();
        let mut all = Vec::new();
        for (id, store) in shards {
            for row in store.scan_all(Scan::partition("requests").limit(1_000)).await.unwrap() {
                all.push((id, row.row, serde_json::from_slice(&row.value).unwrap()));
            }
        }
        all
    }

    /// Asserts that each record exists once, at its place by the map, with this state.
    async fn assert_whole(&self, run: &Run, state: &State, why: &dyn std::fmt::Debug) {
        let map = run.ledger.shards.directory.refresh().await.unwrap();
        assert!(map.moving().is_none(), "{why:?}");
        let records = self.records().await;
        assert_eq!(records.len(), RECORDS, "{why:?}");
        for (shard, row, kept) in &records {
            assert_eq!((map.shard_of(row.as_str()), kept), (Some(*shard), state), "{row}: {why:?}");
        }
        let tally = run.ledger.tally(Duration::ZERO).await.unwrap();
        assert_eq!((tally.astray.as_slice(), tally.records()), ([].as_slice(), RECORDS), "{why:?}");
    }
}

impl Run {
    /// Writes this state to each record, with retries as in the workers; returns the number of retries.
    async fn all(&mut self, state: &State, clock: &Clock) -> usize {
        let mut away = 0;
        for (place, entry) in &mut self.entries {
            while entry.state != *state {
                match self.ledger.advance(*place, entry, state).await {
                    Ok(()) => {}
                    Err(Unwritten::Away { wait, .. }) => {
                        away += 1;
                        clock.sleep(wait.max(MS(50))).await;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
        away
    }

    fn traffic(&self) -> BTreeMap<ShardId, Traffic> {
        self.ledger.shards.traffic()
    }

    fn refused(&self) -> (u64, u64) {
        let all: Vec<_> = self.traffic().into_values().collect();
        (all.iter().map(|t| t.stale).sum(), all.iter().map(|t| t.moving).sum())
    }
}

/// Returns distinct states; the first is that of a new record.
const fn nth(n: u32) -> State {
    if n == 0 { State::Received } else { State::Lost { tries: n, why: String::new() } }
}

#[test]
fn records_lie_where_the_map_says_and_the_next_run_finds_them() {
    let world = World::new(4);
    world.time.block_on(async {
        let mut run = world.start().await;
        world.assert_whole(&run, &nth(0), &"entered").await;
        run.all(&nth(3), &world.clock).await;
        assert!(world.shards.lock().unwrap().len() == 4 && run.traffic().values().all(|t| t.calls > 0));
        let next = world.start().await;
        assert!(next.entries.len() == RECORDS && next.entries.values().all(|entry| entry.state == nth(3)));
        world.assert_whole(&next, &nth(3), &"taken up").await;
    });
}

#[test]
fn a_shard_that_is_away_opens_its_own_breaker_and_the_others_go_on() {
    let world = World::new(4);
    world.time.block_on(async {
        let mut run = world.start().await;
        world.network.client("shard-1").cut();
        let map = run.ledger.shards.directory.map();
        let mut waits = Vec::new();
        for (place, entry) in &mut run.entries {
            match run.ledger.advance(*place, entry, &nth(1)).await {
                Ok(()) => assert_ne!(map.shard_of(format!("{place:010}").as_str()), Some(ShardId(1))),
                Err(Unwritten::Away { wait, .. }) => waits.push(wait),
                Err(error) => panic!("{error}"),
            }
        }
        let traffic = run.traffic();
        let openings: Vec<_> = traffic.values().map(|t| (t.openings, t.rejected > 0)).collect();
        assert_eq!(openings, [(0, false), (1, true), (0, false), (0, false)]);
        // Five calls were sent; the others were rejected with a time to return.
        assert!(waits.len() > 10 && waits[..5].iter().all(Duration::is_zero) && !waits[5].is_zero(), "{waits:?}");
        world.network.client("shard-1").heal();
        run.all(&nth(1), &world.clock).await;
        world.assert_whole(&run, &nth(1), &"healed").await;
    });
}

#[test]
fn a_shard_is_added_while_records_change_and_no_change_is_lost() {
    let world = World::new(4);
    world.time.block_on(async {
        let Run { ledger, growth, mut entries } = world.start().await;
        let other = world.start().await;
        let before = first_map(4).unwrap();
        let grown = async { growth.add(ShardId(4), world.clock.now()).await.unwrap() };
        // Concurrently, as the workers do.
        let changes = async {
            for n in 1..=100 {
                let ledger = &ledger;
                let change =
                    async |(place, entry): (&usize, &mut Entry)| ledger.advance(*place, entry, &nth(n)).await.unwrap();
                futures::future::join_all(entries.iter_mut().map(change)).await;
            }
        };
        // A concurrent read by another process finds each record once.
        let reads = async {
            for _ in 0..30 {
                let tally = other.ledger.tally(Duration::ZERO).await.unwrap();
                assert_eq!((tally.records(), tally.open + tally.lost), (RECORDS, RECORDS));
                world.clock.sleep(MS(3)).await;
            }
        };
        let (grown, (), ()) = tokio::join!(grown, changes, reads);
        let run = Run { ledger, growth, entries };
        world.assert_whole(&run, &nth(100), &"grown").await;
        let (stale, moving) = run.refused();
        assert!(stale > 0 && moving > 0 && grown.failed == 0, "{stale} {moving} {grown:?}");
        // The moved records are those of the new shard, a fifth.
        let tally = run.ledger.tally(Duration::ZERO).await.unwrap();
        assert_eq!(tally.moved_since(&before), tally.shards[&ShardId(4)]);
        assert!((8..=24).contains(&tally.shards[&ShardId(4)]), "{tally:?}");
        // The next run knows the shard, and has nothing to move.
        let next = world.start().await;
        assert_eq!(next.growth.add(ShardId(4), world.clock.now()).await.unwrap().caught_up, 0);
        world.assert_whole(&next, &nth(100), &"taken up").await;
    });
}

#[test]
fn a_run_that_is_killed_at_any_moment_of_a_move_is_gone_on_with() {
    let whole = |kill: Option<Duration>| {
        let world = World::new(2);
        world.time.block_on(async {
            let mut run = world.start().await;
            let began = world.clock.now();
            // An acknowledged write is never undone.
            let told = Mutex::new(BTreeMap::new());
            let changes = async {
                for n in 1.. {
                    let change = async |(place, entry): (&usize, &mut Entry)| {
                        run.ledger.advance(*place, entry, &nth(n)).await.unwrap();
                        told.lock().unwrap().insert(*place, n);
                    };
                    futures::future::join_all(run.entries.iter_mut().take(16).map(change)).await;
                }
            };
            tokio::select! {
                biased;
                () = changes => {}
                grown = run.growth.add(ShardId(2), began) => assert!(grown.is_ok() && kill.is_none(), "{grown:?}"),
                () = world.clock.sleep(kill.unwrap_or(MS(60_000))) => {}
            }
            let took = world.clock.now() - began;
            drop(run);
            let mut next = world.start().await;
            let told = told.into_inner().unwrap();
            for (place, entry) in &next.entries {
                let told = told.get(place).copied().unwrap_or_default();
                assert!([nth(told), nth(told + 1)].contains(&entry.state), "{place}: {told}, {entry:?}: {kill:?}");
            }
            next.all(&nth(2_000), &world.clock).await;
            next.growth.add(ShardId(2), began).await.unwrap();
            next.all(&nth(3_000), &world.clock).await;
            world.assert_whole(&next, &nth(3_000), &kill).await;
            assert!(next.ledger.tally(Duration::ZERO).await.unwrap().shards[&ShardId(2)] > 0);
            took
        })
    };
    let all = whole(None);
    assert!(all > MS(50), "{all:?}");
    let mut kill = Duration::ZERO;
    while kill < all {
        whole(Some(kill));
        kill += MS(1);
    }
}

#[test]
fn a_mover_whose_shard_is_away_goes_on_when_it_is_back() {
    let world = World::new(4);
    world.time.block_on(async {
        let mut run = world.start().await;
        let away = async {
            world.clock.sleep(MS(20)).await;
            world.network.client("shard-4").cut();
            world.clock.sleep(MS(700)).await;
            world.network.client("shard-4").heal();
        };
        let (grown, ()) = tokio::join!(run.growth.add(ShardId(4), world.clock.now()), away);
        let grown = grown.unwrap();
        assert!(grown.failed > 0 && grown.took > MS(700), "{grown:?}");
        run.all(&nth(1), &world.clock).await;
        world.assert_whole(&run, &nth(1), &grown).await;
    });
}

#[test]
fn the_records_are_read_back_whole_or_the_shards_that_are_missing_are_named() {
    let world = World::new(4);
    world.time.block_on(async {
        let run = world.start().await;
        world.network.client("shard-2").cut();
        let missing = run.ledger.tally(Duration::ZERO).await.unwrap_err();
        assert!(missing.starts_with("1 of 4 shards failed: shard-2: "), "{missing}");
        let heal = async {
            world.clock.sleep(MS(900)).await;
            world.network.client("shard-2").heal();
        };
        let (tally, ()) = tokio::join!(run.ledger.tally(MS(10_000)), heal);
        let tally = tally.unwrap();
        assert_eq!((tally.records(), tally.open, tally.shards.len()), (RECORDS, RECORDS, 4));
    });
}

#[test]
fn a_record_that_is_astray_doubled_or_gone_is_found() {
    let world = World::new(2);
    world.time.block_on(async {
        let run = world.start().await;
        let row = format!("{:010}", 7);
        let owner = run.ledger.shards.directory.map().shard_of(row.as_str()).unwrap();
        let [its, other] = [owner, ShardId(1 - owner.0)].map(|id| world.shards.lock().unwrap()[&id].clone());
        let key = Key::new("requests", &row);
        let record = its.get(key).await.unwrap().unwrap();
        other.insert(key, record.value).await.unwrap();
        let doubled = run.ledger.tally(Duration::ZERO).await.unwrap();
        assert_eq!((doubled.astray.len(), doubled.records()), (1, RECORDS), "{:?}", doubled.astray);
        its.delete(key, Default::default()).await.unwrap();
        let astray = run.ledger.tally(Duration::ZERO).await.unwrap();
        assert_eq!((astray.astray.len(), astray.records()), (1, RECORDS - 1), "{:?}", astray.astray);
        other.delete(key, Default::default()).await.unwrap();
        let gone = world.try_start(MS(100)).await.err().unwrap();
        assert_eq!(gone, "1 of its records are gone, the first that of request 7: where is its shard?");
    });
}

#[test]
fn a_shard_of_another_job_is_refused_and_one_that_comes_back_empty_is_not_taken_for_new() {
    let world = World::new(4);
    world.time.block_on(async {
        drop(world.start().await);
        let mine = world.shards.lock().unwrap().remove(&ShardId(2)).unwrap();
        let gone = world.try_start(MS(100)).await.err().unwrap();
        assert!(gone.contains("of its records are gone"), "{gone}");
        let other = World::on(4, &world.clock, &world.time);
        drop(other.start().await);
        let foreign = other.shards.lock().unwrap()[&ShardId(2)].clone();
        let its_neighbour = world.shards.lock().unwrap()[&ShardId(1)].clone();
        for wrong in [foreign, its_neighbour] {
            world.shards.lock().unwrap().insert(ShardId(2), wrong);
            let refused = world.try_start(MS(100)).await.err().unwrap();
            assert_eq!(refused, "shard-2 belongs to another job, or is another shard");
        }
        world.shards.lock().unwrap().insert(ShardId(2), mine);
        let run = world.start().await;
        world.assert_whole(&run, &nth(0), &"put back").await;
    });
}

#[test]
fn a_lost_answer_is_no_other_process_and_another_process_is_found() {
    let world = World::new(4);
    world.time.block_on(async {
        let (mut run, mut other) = (world.start().await, world.start().await);
        let [mine, its] = [&mut run, &mut other].map(|run| run.entries.remove(&7).unwrap());
        let (mut mine, mut its) = (mine, its);
        world.network.configure(slow().lost_replies(1.0)).unwrap();
        let lost = run.ledger.advance(7, &mut mine, &nth(1)).await.unwrap_err();
        assert!(matches!(lost, Unwritten::Away { .. }), "{lost}");
        world.network.configure(slow()).unwrap();
        run.ledger.advance(7, &mut mine, &nth(1)).await.unwrap();
        let records = world.records().await;
        assert_eq!(records.iter().filter(|(.., state)| *state == nth(1)).count(), 1);
        for late in [nth(1), nth(2)] {
            let why = other.ledger.advance(7, &mut its, &late).await.unwrap_err().to_string();
            assert!(why.starts_with("another process works on it"), "{why}");
        }
    });
}
