//! Roll-outs over a fleet of six, of which some die, refuse, become unhealthy or vanish.
use std::{
    collections::BTreeMap,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use futures::future::{Either, join_all, select};
use steadfast::{
    config_store::{
        Change, ConfigPublisher, ConfigStore, ConfigStoreConfig, Documents, PublishError, PublisherConfig,
        RolloutStepKind, Veto,
    },
    entropy::Entropy,
    port::PortErrorKind,
    reconfiguration::{AbortReason, Rollout, RolloutConfig, RolloutError},
    store::{InMemoryStore, Store},
    testing::{crash_at_every_write, drop_at_every_await},
};

use crate::{
    config_store::Disk,
    engines::Engine,
    moody_store::{Mode, Moody},
    world::{MS, S, World},
};

const MEMBERS: usize = 6;
/// A text that ends the process that parses it, and one that the loader refuses.
const KILLS: &str = "kills";
const REFUSED: &str = "refused";

/// One process, in all its lives: its loader notes what it parses.
#[derive(Default)]
struct Process {
    parsed: Mutex<Vec<String>>,
    settings: Mutex<Option<ConfigStore<String>>>,
    has_died: AtomicBool,
    is_sick: AtomicBool,
    is_gone: AtomicBool,
}

#[derive(Clone)]
struct Fleet {
    clock: steadfast::time::Clock,
    store: Arc<dyn Store>,
    processes: Vec<(Arc<Process>, Arc<dyn Store>)>,
}

impl Fleet {
    fn new(world: &World, store: &Arc<dyn Store>) -> Self {
        let process = |_| {
            let local: Arc<dyn Store> = Arc::new(Disk(Arc::new(InMemoryStore::builder().clock(&world.clock).build())));
            (Arc::default(), local)
        };
        Self { clock: world.clock.clone(), store: store.clone(), processes: (0..MEMBERS).map(process).collect() }
    }

    /// Runs a member: whenever it dies, it starts again a second later.
    async fn member(&self, at: usize) {
        let (process, local) = &self.processes[at];
        for life in 0.. {
            let noted = process.clone();
            let load = move |documents: &Documents| {
                let text = documents.text("billing").map_err(|e| e.to_string())?;
                noted.parsed.lock().unwrap().push(text.to_owned());
                noted.has_died.fetch_or(text == KILLS, SeqCst);
                if text == REFUSED { Err("refused".to_owned()) } else { Ok(text.to_owned()) }
            };
            let fit = process.clone();
            let built = ConfigStore::builder(self.store.clone(), "shop", load, ConfigStoreConfig::default())
                .layers(["billing"])
                .local(local.clone())
                .member(format!("member-{at}"))
                .health_check(move || !fit.is_sick.load(SeqCst))
                .clock(&self.clock)
                .entropy(&Entropy::from_seed(at as u64 * 1_000 + life));
            let built = built.build().await;
            if let Ok(settings) = built
                && !process.has_died.load(SeqCst)
            {
                *process.settings.lock().unwrap() = Some(settings.clone());
                let run = settings.run(pending(), |_| async move {
                    if process.has_died.load(SeqCst) {
                        pending::<()>().await;
                    }
                    Ok::<_, Veto>(())
                });
                let dies = async {
                    while !process.has_died.load(SeqCst) && !process.is_gone.load(SeqCst) {
                        self.clock.sleep(S(1)).await;
                    }
                };
                let _ = select(Box::pin(run), Box::pin(dies)).await;
            }
            process.has_died.store(false, SeqCst);
            while process.is_gone.load(SeqCst) {
                self.clock.sleep(S(1)).await;
            }
            self.clock.sleep(S(1)).await;
        }
    }

    /// Runs all members beside the script.
    fn run<F: Future>(&self, world: &World, script: F) -> F::Output {
        let members = async { join_all((0..MEMBERS).map(|at| self.member(at))).await };
        let both = async { select(Box::pin(script), Box::pin(members)).await };
        match world.run(S(20_000), both).expect("it ends") {
            Either::Left((output, _)) => output,
            Either::Right(_) => unreachable!("members have no end"),
        }
    }

    /// Returns how many members run each number.
    fn numbers(&self) -> BTreeMap<u64, usize> {
        let mut numbers = BTreeMap::new();
        self.processes.iter().for_each(|(process, _)| *numbers.entry(process.number()).or_default() += 1);
        numbers
    }

    /// Returns how often each member parsed a text.
    fn parsed(&self, text: &str) -> Vec<usize> {
        let count = |parsed: &Mutex<Vec<String>>| parsed.lock().unwrap().iter().filter(|seen| *seen == text).count();
        self.processes.iter().map(|(process, _)| count(&process.parsed)).collect()
    }

    /// Returns the member that runs this number.
    fn canary(&self, number: u64) -> Option<Arc<Process>> {
        let mut all = self.processes.iter().map(|(process, _)| process);
        all.find(|process| process.number() == number).cloned()
    }
}

fn publisher(world: &World, store: &Arc<dyn Store>, seed: u64) -> ConfigPublisher {
    let built = ConfigPublisher::builder(store.clone(), "shop", PublisherConfig::default());
    built.clock(&world.clock).entropy(&Entropy::from_seed(seed)).build().unwrap()
}

fn rollout(world: &World, publisher: &ConfigPublisher) -> Rollout {
    Rollout::builder(publisher, RolloutConfig::default()).clock(&world.clock).build().unwrap()
}

impl Process {
    fn number(&self) -> u64 {
        self.settings.lock().unwrap().as_ref().map_or(0, |settings| settings.current().number())
    }
}

/// A world with a fleet that runs revision 1.
fn world() -> (World, Arc<Moody>, Fleet, ConfigPublisher, Rollout) {
    let world = World::new();
    let moody = Arc::new(Moody::new(&world.clock));
    let store: Arc<dyn Store> = moody.clone();
    let publisher = publisher(&world, &store, 1);
    world.run(S(1), publisher.publish(Change::to("billing", "first"))).unwrap().unwrap();
    let (fleet, rollout) = (Fleet::new(&world, &store), rollout(&world, &publisher));
    (world, moody, fleet, publisher, rollout)
}

const STAGES: [f64; 3] = [0.05, 0.5, 1.0];

// Guarantee: reconfiguration 6.
#[test]
fn a_change_reaches_one_stage_after_another_and_each_stays_well_before_the_next() {
    let (world, _, fleet, publisher, rollout) = world();
    let seen = Mutex::new(Vec::new());
    let script = async {
        world.clock.sleep(S(100)).await;
        let watch = async {
            loop {
                let number = fleet.numbers().get(&2).copied().unwrap_or_default();
                {
                    let mut seen = seen.lock().unwrap();
                    if seen.last().is_none_or(|(last, _)| *last != number) {
                        seen.push((number, world.clock.now()));
                    }
                }
                world.clock.sleep(S(1)).await;
            }
        };
        let change = Change::to("billing", "second").by("ada").staged(STAGES);
        let Either::Left((done, _)) = select(Box::pin(rollout.run(change)), Box::pin(watch)).await;
        assert_eq!(done.unwrap(), 2);
    };
    fleet.run(&world, script);
    let seen = seen.lock().unwrap();
    let sizes: Vec<usize> = seen.iter().map(|(size, _)| *size).collect();
    assert!(sizes.contains(&1) && sizes.contains(&3) && sizes.ends_with(&[6]), "{sizes:?}");
    let at = |size| seen.iter().find(|(seen, _)| *seen == size).unwrap().1;
    let more = |size| seen.iter().find(|(seen, _)| *seen > size).unwrap().1;
    assert!(more(1) - at(1) >= S(60) && more(3) - at(3) >= S(60), "{seen:?}");
    let steps: Vec<_> = world.run(S(1), publisher.steps(2)).unwrap().unwrap().iter().map(|step| step.kind).collect();
    let stages = STAGES.map(RolloutStepKind::Stage);
    assert_eq!(steps, [stages[0], stages[1], stages[2], RolloutStepKind::Completed]);
}

// Guarantee: reconfiguration 6.
#[test]
fn a_change_that_kills_is_parsed_twice_by_one_canary_and_by_no_other_process() {
    let (world, _, fleet, publisher, rollout) = world();
    let script = async {
        world.clock.sleep(S(100)).await;
        for (attempt, number) in [2u64, 3, 4].into_iter().enumerate() {
            let change = Change::to("billing", KILLS).staged(STAGES);
            let error = rollout.run(change).await.unwrap_err();
            let RolloutError::Aborted { number: aborted, reason, .. } = &error else { panic!("{error}") };
            assert_eq!((*aborted, *reason), (number, AbortReason::Rejected));
            world.clock.sleep(S(36)).await;
            assert_eq!(fleet.numbers(), [(1, MEMBERS)].into());
            assert_eq!(fleet.parsed(KILLS).iter().sum::<usize>(), 2 * (attempt + 1));
        }
        // The numbers are not used again.
        assert_eq!(publisher.publish(Change::to("billing", "good")).await.unwrap(), 5);
        world.clock.sleep(S(36)).await;
        assert_eq!(fleet.numbers(), [(5, MEMBERS)].into());
    };
    fleet.run(&world, script);
    assert!(fleet.parsed(KILLS).iter().all(|count| count % 2 == 0), "{:?}", fleet.parsed(KILLS));
}

// Guarantee: reconfiguration 6.
#[test]
fn a_member_that_refuses_is_unhealthy_or_vanishes_aborts_and_all_return_to_the_number_before() {
    let (world, _, fleet, _, rollout) = world();
    let script = async {
        world.clock.sleep(S(100)).await;
        let mut number = 1;
        for (text, expected) in
            [(REFUSED, AbortReason::Rejected), ("sick", AbortReason::Unhealthy), ("gone", AbortReason::Vanished)]
        {
            number += 1;
            let run = rollout.run(Change::to("billing", text).staged(STAGES));
            let disturb = async {
                let canary = loop {
                    match fleet.canary(number) {
                        Some(canary) => break canary,
                        None => world.clock.sleep(S(1)).await,
                    }
                };
                world.clock.sleep(S(10)).await;
                match expected {
                    AbortReason::Unhealthy => canary.is_sick.store(true, SeqCst),
                    _ => canary.is_gone.store(true, SeqCst),
                }
                pending::<()>().await;
            };
            let Either::Left((result, _)) = select(Box::pin(run), Box::pin(disturb)).await else { panic!() };
            let error = result.unwrap_err();
            let RolloutError::Aborted { number: aborted, reason, member } = &error else { panic!("{error}") };
            assert_eq!((*aborted, *reason), (number, expected));
            assert!(member.starts_with("member-"), "{member}");
            for (process, _) in &fleet.processes {
                process.is_sick.store(false, SeqCst);
                process.is_gone.store(false, SeqCst);
            }
            world.clock.sleep(S(40)).await;
            assert_eq!(fleet.numbers(), [(1, MEMBERS)].into());
        }
    };
    fleet.run(&world, script);
}

// Guarantee: reconfiguration 6.
#[test]
fn a_first_stage_is_no_larger_because_most_members_were_not_seen_when_it_was_entered() {
    let (world, _, fleet, _, rollout) = world();
    let script = async {
        world.clock.sleep(S(100)).await;
        let away = |is_away: bool| fleet.processes[1..].iter().for_each(|(one, _)| one.is_gone.store(is_away, SeqCst));
        away(true);
        world.clock.sleep(S(40)).await;
        let come_back = async {
            world.clock.sleep(S(3)).await;
            away(false);
            pending::<()>().await;
        };
        let run = rollout.run(Change::to("billing", KILLS).staged(STAGES));
        let Either::Left((result, _)) = select(Box::pin(run), Box::pin(come_back)).await else { panic!() };
        assert!(matches!(result, Err(RolloutError::Aborted { number: 2, .. })), "{result:?}");
        world.clock.sleep(S(40)).await;
    };
    fleet.run(&world, script);
    // Lots are drawn: one of those that were away may lie below that of the only one that was seen.
    assert!(fleet.parsed(KILLS).iter().sum::<usize>() <= 4, "{:?}", fleet.parsed(KILLS));
}

// Guarantee: reconfiguration 6.
#[test]
fn no_stage_is_entered_while_nobody_is_seen() {
    let (world, moody, fleet, publisher, driver) = world();
    let script = async {
        world.clock.sleep(S(100)).await;
        moody.is(Mode::Slow(S(1)));
        // It ends between the publication, after four requests, and the first stage.
        let run = driver.run(Change::to("billing", KILLS).staged(STAGES));
        let _ = select(Box::pin(run), Box::pin(world.clock.sleep(MS(4_500)))).await;
        moody.is(Mode::Well);
        let away = |is_away: bool| fleet.processes.iter().for_each(|(one, _)| one.is_gone.store(is_away, SeqCst));
        away(true);
        world.clock.sleep(S(40)).await;
        assert!(matches!(driver.advance().await, Err(RolloutError::NoMembers)));
        let come_back = async {
            world.clock.sleep(S(20)).await;
            assert_eq!(publisher.steps(2).await.unwrap(), []);
            away(false);
            pending::<()>().await;
        };
        let Either::Left((result, _)) = select(Box::pin(driver.resume()), Box::pin(come_back)).await else { panic!() };
        assert!(matches!(result, Err(RolloutError::Aborted { number: 2, .. })), "{result:?}");
        world.clock.sleep(S(40)).await;
    };
    fleet.run(&world, script);
    assert_eq!(fleet.parsed(KILLS).iter().sum::<usize>(), 2, "{:?}", fleet.parsed(KILLS));
}

// Guarantee: reconfiguration 6.
#[test]
fn a_stage_whose_members_were_gone_before_a_new_driver_came_is_aborted() {
    let (world, _, fleet, _, driver) = world();
    let script = async {
        world.clock.sleep(S(100)).await;
        let run = driver.run(Change::to("billing", "second").staged(STAGES));
        let _ = select(Box::pin(run), Box::pin(world.clock.sleep(S(45)))).await;
        fleet.canary(2).unwrap().is_gone.store(true, SeqCst);
        world.clock.sleep(S(40)).await;
        let result = driver.resume().await;
        let RolloutError::Aborted { number: 2, member, reason: AbortReason::Vanished } = result.unwrap_err() else {
            panic!()
        };
        assert_eq!(member, "");
    };
    fleet.run(&world, script);
}

// Guarantee: reconfiguration 7.
#[test]
fn a_new_driver_resumes_at_the_recorded_step_and_two_drivers_do_no_harm() {
    let (world, _, fleet, publisher, first) = world();
    let script = async {
        world.clock.sleep(S(100)).await;
        // The first driver ends in the first stage.
        let run = Box::pin(first.run(Change::to("billing", "second").staged(STAGES)));
        let _ = select(run, Box::pin(world.clock.sleep(S(50)))).await;
        assert_eq!(fleet.numbers().get(&2), Some(&1));
        let (one, other) = (rollout(&world, &publisher), rollout(&world, &self::publisher(&world, &fleet.store, 9)));
        let began = world.clock.now();
        let (a, b) = futures::join!(one.resume(), other.resume());
        assert_eq!((a.unwrap(), b.unwrap()), (2, 2));
        assert!(world.clock.now() - began >= S(180), "each stage has its time");
        let steps = publisher.steps(2).await.unwrap();
        assert_eq!(steps.len(), 4, "{steps:?}");
        assert!(matches!(one.resume().await, Err(RolloutError::NotUnderWay)));
    };
    fleet.run(&world, script);
}

// Guarantee: reconfiguration 7.
#[test]
fn a_roll_out_advances_and_aborts_by_hand_and_waits_while_the_store_is_away() {
    let (world, moody, fleet, publisher, driver) = world();
    let script = async {
        world.clock.sleep(S(100)).await;
        let by_hand = rollout(&world, &publisher);
        let run = driver.run(Change::to("billing", "second").staged(STAGES));
        let hand = async {
            world.clock.sleep(S(45)).await;
            assert_eq!(fleet.numbers().get(&2), Some(&1));
            assert!(matches!(
                publisher.publish(Change::to("billing", "third")).await,
                Err(PublishError::RolloutUnderWay(2))
            ));
            by_hand.advance().await.unwrap();
            world.clock.sleep(S(37)).await;
            assert_eq!(fleet.numbers().get(&2), Some(&3));
            // The store is away for longer than the stage takes.
            moody.is(Mode::Fails(PortErrorKind::Unavailable));
            world.clock.sleep(S(20)).await;
            moody.is(Mode::Well);
            world.clock.sleep(S(45)).await;
            assert_eq!(fleet.numbers().get(&2), Some(&3), "it was not seen to be well for its time");
            by_hand.abort().await.unwrap();
        };
        let (result, ()) = futures::join!(run, hand);
        assert!(
            matches!(result, Err(RolloutError::Aborted { number: 2, reason: AbortReason::ByHand, .. })),
            "{result:?}"
        );
        world.clock.sleep(S(40)).await;
        assert_eq!(fleet.numbers(), [(1, MEMBERS)].into());
        // A rollback ends one, too.
        let run = driver.run(Change::to("billing", "third").staged(STAGES));
        let back = async {
            world.clock.sleep(S(45)).await;
            publisher.rollback(1, "ada", "no").await.unwrap()
        };
        let (result, number) = futures::join!(run, back);
        assert!(matches!(result, Err(RolloutError::Aborted { number: 3, .. })), "{result:?}");
        world.clock.sleep(S(40)).await;
        assert_eq!((number, fleet.numbers()), (4, [(4, MEMBERS)].into()));
    };
    fleet.run(&world, script);
}

// Guarantee: reconfiguration 7.
#[test]
fn a_store_that_is_away_for_longer_than_rows_of_members_live_aborts_nothing() {
    let (world, moody, fleet, _, driver) = world();
    let script = async {
        world.clock.sleep(S(100)).await;
        let run = driver.run(Change::to("billing", "second").staged(STAGES));
        let away = async {
            for _ in 0..3 {
                world.clock.sleep(S(60)).await;
                moody.is(Mode::Fails(PortErrorKind::Unavailable));
                // The driver looks before a member has written its row again.
                world.clock.sleep(MS(59_950)).await;
                moody.is(Mode::Well);
            }
        };
        let (result, ()) = futures::join!(run, away);
        assert_eq!(result.unwrap(), 2);
    };
    fleet.run(&world, script);
}

// Guarantee: reconfiguration 7.
#[test]
fn a_driver_that_crashes_at_any_request_is_followed_by_one_that_ends_the_roll_out() {
    for engine in Engine::ALL {
        let requests = crash_at_every_write(|process| {
            let engine = engine.world();
            let world = World::at(&engine.time);
            let good = publisher(&world, &engine.store, 1);
            world.run(S(1), good.publish(Change::to("billing", "first"))).unwrap().unwrap();
            let fleet = Fleet::new(&world, &engine.store);
            let config = RolloutConfig::default().bake(S(2)).look_interval(S(40));
            let driver =
                |publisher: &ConfigPublisher| Rollout::builder(publisher, config).clock(&world.clock).build().unwrap();
            let crashes = driver(&publisher(&world, &process.store(engine.store.clone()), 2));
            let script = async {
                world.clock.sleep(S(3)).await;
                let change = Change::to("billing", "second").staged([0.5, 1.0]);
                let run = process.run(crashes.run(change));
                let _ = select(Box::pin(run), Box::pin(world.clock.sleep(S(400)))).await;
                let next = driver(&good);
                match next.resume().await {
                    Ok(number) => assert_eq!(number, 2),
                    Err(RolloutError::NotUnderWay) => {}
                    Err(error) => panic!("{error}"),
                }
                let head = good.head().await.unwrap();
                world.clock.sleep(S(40)).await;
                assert_eq!(fleet.numbers(), [(head, MEMBERS)].into());
            };
            fleet.run(&world, script);
        });
        assert!(requests >= 8, "{requests}");
    }
}

#[test]
fn stages_that_do_not_grow_to_one_no_members_and_a_store_without_times_to_live_are_refused() {
    let (world, moody, _, publisher, rollout) = world();
    let refused = |shares: &[f64]| {
        let change = Change::to("billing", "second").staged(shares.iter().copied());
        world.run(S(1), rollout.run(change)).unwrap().unwrap_err()
    };
    for shares in [&[][..], &[0.5], &[0.5, 0.5, 1.0], &[0.6, 0.5, 1.0], &[0.0, 1.0], &[0.5, 1.5], &[f64::NAN, 1.0]] {
        let error = refused(shares);
        assert!(error.to_string().contains("stages"), "{shares:?}: {error}");
    }
    assert!(matches!(refused(&[0.5, 1.0]), RolloutError::NoMembers));
    assert_eq!(world.run(S(1), publisher.head()).unwrap().unwrap(), 1);
    assert_eq!(Rollout::new(&publisher, RolloutConfig::default().bake(S(0))).unwrap_err().field(), "bake");
    let poor: Arc<dyn Store> = Arc::new(Poor(moody.store.clone()));
    let poor = self::publisher(&world, &poor, 1);
    assert_eq!(Rollout::new(&poor, RolloutConfig::default()).unwrap_err().field(), "publisher");
}

// Guarantee: reconfiguration 7.
#[test]
fn a_driver_dropped_at_every_await_leaves_a_roll_out_that_can_be_aborted() {
    let (world, moody, fleet, publisher, rollout) = world();
    fleet.run(&world, world.clock.sleep(S(100)));
    moody.is(Mode::Slow(S(1)));
    let mut stages = 0;
    // The members' rows expire meanwhile.
    let polls = drop_at_every_await(
        &world.time,
        || rollout.run(Change::to("billing", "second").staged([0.5, 1.0])),
        |_| {
            stages += usize::from(world.run(S(60), rollout.abort()).unwrap().is_ok());
            assert_eq!(world.run(S(60), publisher.head()).unwrap().unwrap(), 1);
            // The process that reports has not died.
            world.run(S(5), fleet.member(0));
        },
    );
    assert!(polls >= 5 && stages >= 2, "{polls} {stages}");
    for polls in [
        drop_at_every_await(&world.time, || rollout.resume(), |_| {}),
        drop_at_every_await(&world.time, || rollout.advance(), |_| {}),
        drop_at_every_await(&world.time, || rollout.abort(), |_| {}),
    ] {
        assert!(polls >= 2, "{polls}");
    }
}

/// A store without times to live.
#[derive(Debug)]
struct Poor(InMemoryStore);

impl Store for Poor {
    forward_store! { 0: get, put, delete, scan, batch }

    fn capabilities(&self) -> steadfast::port::Capabilities {
        self.0.capabilities().without(steadfast::port::Capability::TimeToLive)
    }
}
