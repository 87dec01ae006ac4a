//! Members that join, leave, die and stall: each partition has one owner, and each member its share.
use std::{collections::BTreeMap, future::Future, pin::Pin, sync::Arc, time::Duration};

use steadfast::{
    notify::InMemoryNotifier,
    store::{Key, Precondition, PutOptions, Scan, Store, StoreError, StoreExt},
    stream::StreamProcessorEvent as Event,
    testing::ScriptedPort,
    testing::faults::{FaultConfig, FaultNetwork},
    time::{Clock, Instant, ManualClock, TimeSource, Timestamp},
    work::EventDisposition,
};

use super::world::{MS, S, World, complete, numbered};

/// Asserts that the partitions are divided: each has one owner, and shares differ by one.
fn assert_divided(world: &World, names: &[&str], partitions: u16) {
    let mut owners = BTreeMap::new();
    for name in names {
        for partition in world.owned(name) {
            assert!(owners.insert(partition, *name).is_none(), "{partition} has two owners");
        }
    }
    assert_eq!(owners.len(), usize::from(partitions));
    let shares = world.shares();
    assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= 1, "{shares:?}");
}

// Guarantee: stream 7.
#[test]
fn ten_partitions_on_four_members_are_three_three_two_and_two() {
    let world = World::new(10);
    let names = ["a", "b", "c", "d"];
    for name in names {
        world.start(name);
        world.pass(S(1));
    }
    world.pass(S(30));
    assert_divided(&world, &names, 10);
    let mut shares = world.shares();
    shares.sort_unstable();
    assert_eq!(shares, [2, 2, 3, 3]);
}

// Guarantee: stream 6.
#[test]
fn nothing_moves_at_rest_in_an_hour() {
    let world = World::new(10);
    for name in ["a", "b", "c"] {
        world.start(name);
    }
    world.pass(S(60));
    assert_divided(&world, &["a", "b", "c"], 10);
    let claims = world.claims();
    world.pass(S(3600));
    assert_eq!(world.claims(), claims);
    assert_divided(&world, &["a", "b", "c"], 10);
}

// Guarantee: stream 8.
#[test]
fn a_killed_owner_is_replaced_within_the_term_an_interval_and_a_poll() {
    for killed_after in 0..12 {
        let world = World::new(6);
        world.start("a");
        world.start("b");
        world.pass(S(40) + MS(killed_after * 900));
        assert_divided(&world, &["a", "b"], 6);
        world.kill("a");
        let took = world.pass_until(S(60), || world.owned("b").len() == 6);
        assert!(took <= S(27), "{took:?}");
        assert!(took >= S(9), "no term was cut short: {took:?}");
    }
}

// Guarantee: stream 8.
#[test]
fn a_joining_member_has_its_share_within_two_intervals() {
    for joins_after in 0..12 {
        let world = World::new(32);
        world.start("a");
        world.start("b");
        world.pass(S(60) + MS(joins_after * 700));
        world.start("c");
        let took = world.pass_until(S(60), || world.owned("c").len() >= 10);
        assert!(took <= S(20), "{took:?}");
        world.pass(S(20));
        assert_divided(&world, &["a", "b", "c"], 32);
        let moved = world.told(|event| matches!(event, Event::Released { .. }).then_some(())).len();
        // Those that "a" gave to "b", if it was alone at first, and those of "c".
        assert!(moved <= 16 + 10, "{moved} moved");
    }
}

// Guarantee: stream 8.
#[test]
fn with_a_notifier_a_joining_member_has_its_share_as_soon_as_it_asks() {
    let world = World::new(8);
    let notifier = Arc::new(InMemoryNotifier::new());
    for (name, wait) in [("a", 30), ("b", 0)] {
        let builder = world.builder(name, World::config()).notifier(notifier.clone());
        world.start_built(name, builder.build().unwrap(), |_| complete());
        world.pass(S(wait));
    }
    let took = world.pass_until(S(30), || world.shares() == [4, 4]);
    assert!(took <= S(1), "{took:?}");
}

// Guarantee: stream 8.
#[test]
fn a_member_that_stops_hands_over_within_a_poll_and_an_interval() {
    let world = World::new(6);
    world.start("a");
    world.start("b");
    world.pass(S(40));
    world.stop("a");
    let took = world.pass_until(S(30), || world.owned("b").len() == 6);
    assert!(took <= S(8), "{took:?}");
    let members =
        world.time.block_on(world.store.scan_all(Scan::partition("stream-group/dispatch/orders").prefix("m/")));
    assert_eq!(members.unwrap().len(), 1, "it has left no row");
}

// Guarantee: stream 7.
#[test]
fn a_member_that_is_slow_to_announce_itself_loses_no_partition() {
    let world = World::new(4);
    let network = FaultNetwork::new(FaultConfig::default(), 1, &world.clock).unwrap();
    let client = network.client("a");
    let store = client.store(world.store.clone());
    let slow = world.builder_on("a", World::config(), store, &world.clock).build().unwrap();
    world.start_built("a", slow, |_| complete());
    world.start("b");
    world.pass(S(40));
    assert_divided(&world, &["a", "b"], 4);
    let (claims, owned) = (world.claims(), world.owned("a"));
    // Longer than the time in which "b" takes it for gone, and within its terms.
    client.pause();
    world.pass(S(7));
    client.resume();
    world.pass(S(60));
    let seen = world.told(|event| match event {
        Event::MembersChanged { members } => Some(*members),
        _ => None,
    });
    assert!(seen.ends_with(&[2, 1, 2]), "{seen:?}");
    assert_eq!((world.claims(), world.owned("a")), (claims, owned));
}

// Guarantee: stream 1.
#[test]
fn an_owner_that_wakes_after_its_term_writes_no_checkpoint() {
    let world = World::new(1);
    let network = FaultNetwork::new(FaultConfig::default(), 1, &world.clock).unwrap();
    let client = network.client("a");
    let store = client.store(world.store.clone());
    let paused = world.builder_on("a", World::quick(), store, &world.clock).build().unwrap();
    let clock = world.clock.clone();
    world.start_built("a", paused, move |_| {
        let clock = clock.clone();
        async move {
            clock.sleep(S(2)).await;
            EventDisposition::Complete
        }
    });
    world.pass(S(2));
    world.topic.add(0, numbered("", 0..5));
    world.pass(S(1));
    client.pause();
    world.start_as("b", World::quick(), |_| complete());
    world.pass(S(20));
    assert_eq!(world.watermark(0), 5);
    client.resume();
    world.pass(S(20));
    assert_eq!(world.watermark(0), 5);
    assert!(world.owned("a").len() + world.owned("b").len() == 1);
}

// Guarantee: stream 1.
#[test]
fn a_checkpoint_of_an_earlier_owner_is_refused_by_version_and_by_fence() {
    let world = World::new(1);
    let key = Key::new("stream-group/dispatch/orders", "p/0000");
    let get = || world.time.block_on(world.store.get(key)).unwrap().unwrap();
    world.start_as("a", World::quick(), |_| complete());
    world.pass(S(2));
    let of_a = get();
    world.kill("a");
    world.start_as("b", World::quick(), |_| complete());
    world.pass(S(10));
    let of_b = get();
    assert!(of_b.version > of_a.version, "it was rewritten, although nothing was finished");
    let late = world.store.put(key, of_a.value.clone(), Precondition::Version(of_a.version).into());
    assert!(matches!(world.time.block_on(late), Err(StoreError::Conflict { .. })));
    // As an earlier owner does that claims late: with the version of now.
    let token = world.told(|event| match event {
        Event::Claimed { token, .. } => Some(*token),
        _ => None,
    })[0];
    let options = PutOptions::new().when(Precondition::Version(of_b.version)).fence(token);
    assert!(matches!(world.time.block_on(world.store.put(key, of_a.value, options)), Err(StoreError::Fenced { .. })));
}

/// A clock that is ahead of that of the driver.
struct Ahead(ManualClock, Duration);

impl TimeSource for Ahead {
    fn now(&self) -> Instant {
        self.0.now() + self.1
    }
    fn sleep_until(&self, at: Instant) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.0.clock().sleep_until(at.saturating_sub(self.1)))
    }
    fn wall(&self) -> Timestamp {
        Timestamp::from_millis(self.0.clock().wall().as_millis() + self.1.as_millis() as u64)
    }
}

// Guarantee: stream 8.
#[test]
fn clocks_an_hour_apart_change_nothing() {
    let world = World::new(10);
    for (name, ahead) in [("a", 0), ("b", 3600), ("c", 7200)] {
        let clock = Clock::from_source(Ahead(world.time.clone(), S(ahead)));
        let member = world.builder_on(name, World::config(), world.store.clone(), &clock).build().unwrap();
        world.start_built(name, member, |_| complete());
    }
    world.pass(S(60));
    assert_divided(&world, &["a", "b", "c"], 10);
    let claims = world.claims();
    world.pass(S(1800));
    assert_eq!(world.claims(), claims);
    world.kill("b");
    let took = world.pass_until(S(60), || world.shares() == [5, 5]);
    assert!(took <= S(27), "{took:?}");
}

// Guarantee: stream 7.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn an_idle_member_makes_few_requests() {
    for partitions in [1, 32] {
        let world = World::new(partitions);
        let script = ScriptedPort::new(&world.clock);
        let store = script.store(world.store.clone());
        let member = world.builder_on("a", World::config(), store, &world.clock).build().unwrap();
        world.start_built("a", member, |_| complete());
        world.pass(S(60));
        script.forget();
        let reads = world.topic.requests.load(std::sync::atomic::Ordering::Relaxed);
        world.pass(S(3600));
        let requests = script.calls("").len() as u64;
        let reads = world.topic.requests.load(std::sync::atomic::Ordering::Relaxed) - reads;
        println!("{partitions} idle partitions: {requests} requests to the store and {reads} reads an hour");
        let n = u64::from(partitions);
        // Announcements and looks, renewals of two requests each, and reads.
        assert!(requests <= 2_500 + n * 1_450, "{requests}");
        assert!(reads <= n * 725, "{reads}");
    }
}

// Guarantee: stream 7.
#[test]
fn a_member_whose_row_stays_behind_is_forgotten() {
    let world = World::new(2);
    world.start("a");
    world.pass(S(30));
    world.kill("a");
    world.start("b");
    world.pass(S(150));
    let rows = world.time.block_on(world.store.scan_all(Scan::partition("stream-group/dispatch/orders").prefix("m/")));
    assert_eq!(rows.unwrap().len(), 1);
    assert_eq!(world.shares(), [2]);
}

// Guarantee: stream 7.
#[test]
#[ignore = "takes seconds: `.ci/run` runs it"]
fn any_number_of_members_that_come_and_go_end_with_equal_shares() {
    for seed in 0..20_u64 {
        let world = World::new(13);
        let entropy = steadfast::entropy::Entropy::from_seed(seed);
        let mut names = Vec::new();
        for i in 0..12 {
            match entropy.up_to(2) {
                0 if names.len() > 1 => {
                    let name: String = names.swap_remove(entropy.up_to(names.len() as u64 - 1) as usize);
                    if entropy.up_to(1) == 0 { world.kill(&name) } else { world.stop(&name) }
                }
                _ => {
                    let name = format!("m{i:02}");
                    world.start(&name);
                    names.push(name);
                }
            }
            world.pass(MS(entropy.up_to(20_000)));
        }
        world.pass(S(90));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_divided(&world, &names, 13);
        let claims = world.claims();
        world.pass(S(600));
        assert_eq!(world.claims(), claims, "seed {seed}");
    }
}

#[test]
fn a_member_that_runs_already_refuses_a_second_run() {
    let world = World::new(1);
    world.start("a");
    world.pass(S(1));
    let again = world.processor("a");
    let refused = world.time.block_on(again.run(std::future::pending(), async |_| ())).unwrap_err();
    assert_eq!(refused.to_string(), "this member of the group runs already");
}
