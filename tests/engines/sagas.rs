//! Sagas over servers: a process ends at each of its requests, and another one goes on.
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use steadfast::{
    codec::Codec,
    queue::{Queue, QueueExt},
    queue_listener::IdleConfig,
    saga::{Action, Compensation, Participant, Plan, Saga, SagaConfig, SagaOutcome, SagaPhase, Step, StepOutcome},
    scheduler::{STATUS, Scheduler, SchedulerConfig, Submission},
    store::{Precondition, Scan, Store, StoreExt, Write},
    testing::{CrashingProcess, crash_at_every_write, fail_at_every_write, repeated},
};
use tokio::runtime::Runtime;

use crate::{faults::again, server::Watch};

const MS: fn(u64) -> Duration = Duration::from_millis;
const STEPS: [&str; 4] = ["seat", "room", "car", "tour"];

type State = BTreeMap<String, String>;

/// Makes a booking in a store, once for each key.
#[derive(Clone)]
struct Books {
    bookings: Participant,
    fails: bool,
}

impl Action<State> for Books {
    async fn execute(&self, step: &Step<State>) -> StepOutcome<State> {
        if self.fails && step.name() == "tour" {
            return StepOutcome::failed("sold out");
        }
        let booking = number().to_string();
        let rows = vec![Write::put(format!("b/{booking}"), step.key().to_owned(), Precondition::Absent)];
        if let Err(error) = self.bookings.execute(step.key(), rows, booking).await {
            return StepOutcome::unknown(error);
        }
        let (name, reply) = (step.name().to_owned(), self.bookings.reply(step.key()).await);
        match reply {
            Ok(Some(booking)) => {
                step.write(Write::append("u/log/", name.clone()));
                let booking = String::from_utf8_lossy(&booking).into_owned();
                StepOutcome::changed(move |state: &mut State| drop(state.insert(name, booking)))
            }
            other => StepOutcome::unknown(format!("{other:?}")),
        }
    }
}

impl Compensation<State> for Books {
    async fn compensate(&self, step: &Step<State>) -> StepOutcome<State> {
        let key = step.action_key();
        let rows = match self.bookings.reply(key).await {
            Ok(Some(booking)) => {
                let row = format!("b/{}", String::from_utf8_lossy(&booking));
                vec![Write::delete(row, steadfast::store::DeleteOptions::new())]
            }
            Ok(None) => Vec::new(),
            Err(error) => return StepOutcome::unknown(error),
        };
        let name = step.name().to_owned();
        match self.bookings.compensate(key, rows).await {
            Ok(_) => StepOutcome::changed(move |state: &mut State| drop(state.remove(&name))),
            Err(error) => StepOutcome::unknown(error),
        }
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Returns names that no other test uses.
fn number() -> u32 {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    NUMBER.fetch_add(1, Relaxed)
}

fn saga(name: &str, records: Arc<dyn Store>, books: &Books, times: u32) -> Saga<State> {
    let step = || books.clone();
    let plan = Plan::new()
        .step("seat", step())
        .parallel(|plan| plan.step("room", step()).step("car", step()))
        .step("tour", step());
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    let config = SagaConfig::default();
    let (retry, undo) = (config.retry.between(MS(1), MS(5)), config.compensation_retry.between(MS(1), MS(5)));
    // Killed processes use attempts up.
    let config = config.retry(retry).compensation_retry(undo).max_attempts(1_000);
    Saga::new(name.to_owned(), records, codec, repeated(plan, times), config).unwrap()
}

fn books(name: &str, store: Arc<dyn Store>, fails: bool) -> Books {
    Books { bookings: Participant::new(store, format!("bookings of {name}")).unwrap(), fails }
}

/// Returns the numbers of bookings and of rows of the steps.
async fn counts(store: &dyn Store, name: &str) -> (usize, usize) {
    let bookings = Scan::partition(format!("bookings of {name}")).prefix("b/");
    let rows = Scan::partition(format!("saga/{name}")).prefix("u/log/");
    (store.scan_all(bookings).await.unwrap().len(), store.scan_all(rows).await.unwrap().len())
}

/// The process crashes in requests for the saga's record and for the bookings.
fn one_saga(runtime: &Runtime, store: &Arc<dyn Store>, fails: bool, process: &CrashingProcess) {
    runtime.block_on(async {
        let name = format!("trip-{}", number());
        let behind = process.store(store.clone());
        let crashes = saga(&name, behind.clone(), &books(&name, behind, fails), 1);
        let ran = process.run(crashes.run("42", State::new())).await;
        let other = saga(&name, store.clone(), &books(&name, store.clone(), fails), 2);
        let end = match ran {
            Some(Ok(end)) => end,
            // It was never started, or its executor is gone.
            _ => match other.resume("42").await {
                Ok(end) => end,
                Err(_) => other.run("42", State::new()).await.unwrap(),
            },
        };
        let (bookings, rows) = counts(&**store, &name).await;
        if fails {
            assert!(matches!(end, SagaOutcome::Compensated { .. }), "{end:?}");
            assert_eq!((bookings, rows), (0, 3));
        } else {
            let SagaOutcome::Completed(state) = end else { panic!("{end:?}") };
            assert_eq!((state.len(), bookings, rows), (4, 4, 4));
            assert!(matches!(other.cancel("42", "ill").await, Ok(SagaOutcome::Compensated { .. })));
            assert_eq!(counts(&**store, &name).await.0, 0);
        }
        assert_eq!(other.list_open().await.unwrap(), []);
    });
}

fn crashes(runtime: &Runtime, store: &Arc<dyn Store>) {
    for fails in [false, true] {
        // Concurrent steps make their requests in any order: the number of points is that of the first run.
        let requests = crash_at_every_write(|process| one_saga(runtime, store, fails, process));
        println!("{requests} requests, each with a crash before and after it");
        fail_at_every_write(|process| one_saga(runtime, store, fails, process));
    }
}

/// Many processes schedule many orders; each process is killed again and again.
async fn orders(store: Arc<dyn Store>, queue: Arc<dyn Queue>, replies: Arc<dyn Queue>) {
    const ORDERS: usize = 20;
    let name = format!("order-{}", number());
    let books = books(&name, store.clone(), false);
    let process = || {
        // On a busy machine a process may be killed many times before it claims a saga.
        let config = SchedulerConfig::default().visibility(MS(1_000)).max_deliveries(u32::MAX);
        let config = config.idle(IdleConfig::between(MS(5), MS(50)));
        let found = replies.clone();
        Scheduler::builder(saga(&name, store.clone(), &books, 1), queue.clone(), config)
            .replies(move |_| Some(found.clone()))
            .build()
            .unwrap()
    };
    let front = process();
    for i in 0..ORDERS {
        let order = Submission::new(format!("o{i}"), State::new()).reply_to("web", format!("{i}"));
        for _ in 0..2 {
            // A busy server may answer too late, and a repeated submission has no further effect.
            while front.submit(order.clone()).await.is_err() {
                crate::server::pass(MS(50)).await;
            }
        }
    }
    let kills = Mutex::new(0);
    let ended = async || {
        let mut ended = 0;
        for i in 0..ORDERS {
            // A busy server may not answer: it is asked again.
            let status = front.read(&format!("o{i}")).await.unwrap_or_default();
            ended += usize::from(status.is_some_and(|status| status.phase == SagaPhase::Completed));
        }
        ended
    };
    // Grows while nothing ends: on a busy machine a short life may not suffice for one step.
    let factor = AtomicU32::new(1);
    let lives = async || {
        loop {
            // Dropped in the middle of its work.
            let life = MS(300) * factor.load(Relaxed);
            let _ = tokio::time::timeout(life, process().run(std::future::pending())).await;
            *kills.lock().unwrap() += 1;
        }
    };
    let all = async {
        let (mut most, mut at) = (0, Watch::start());
        while most < ORDERS {
            crate::server::pass(MS(50)).await;
            let now = ended().await;
            if now > most {
                (most, at) = (now, Watch::start());
            }
            let still = at.passed();
            assert!(still < MS(200_000), "{now} of {ORDERS} have ended, and nothing moves");
            factor.fetch_max((1 + still.as_secs() as u32 / 5).min(40), Relaxed);
        }
    };
    tokio::select! {
        () = all => {}
        _ = async { tokio::join!(lives(), lives()) } => {}
    }
    // What the killed processes left comes back after their visibility time-outs.
    let empty = async {
        while again("depth", || queue.depth()).await.0.total() > 0 {
            crate::server::pass(MS(50)).await;
        }
    };
    process().run(empty).await.unwrap();
    assert_eq!(counts(&*store, &name).await, (ORDERS * STEPS.len(), ORDERS * STEPS.len()));
    let mut told: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some(reply) = replies.receive_one(MS(600_000)).await.unwrap() {
        told.entry(reply.headers["correlation-id"].clone()).or_default().push(reply.headers[STATUS].clone());
        replies.complete(&reply.receipt).await.unwrap();
    }
    let whole = told.values().filter(|told| **told == ["received", "completed"]).count();
    println!("{ORDERS} orders, {} kills, {whole} with one message for each status", kills.lock().unwrap());
    assert_eq!(told.len(), ORDERS);
    let is_told = told.values().all(|told| told[0] == "received" && told.last().unwrap() == "completed");
    assert!(is_told, "{told:?}: an order was not received first, or not completed last");
}

#[cfg(feature = "postgres")]
mod postgres {
    use super::*;
    use crate::postgres::{connect, shared};

    #[test]
    fn a_saga_whose_process_ends_at_any_request_ends_with_each_effect_once_or_none() {
        let runtime = runtime();
        let postgres = runtime.block_on(connect(&shared()));
        crashes(&runtime, &(Arc::new(postgres.store()) as Arc<dyn Store>));
    }

    #[test]
    fn orders_whose_processes_are_killed_are_completed_once_and_replied_to() {
        runtime().block_on(async {
            let postgres = connect(&shared()).await;
            let queue = async |name: &str| Arc::new(postgres.queue(name).await.unwrap()) as Arc<dyn Queue>;
            orders(Arc::new(postgres.store()), queue("orders").await, queue("replies").await).await;
        });
    }
}

#[cfg(feature = "redis")]
mod redis {
    use steadfast::backend::redis::{Redis, RedisConfig};

    use super::*;
    use crate::server;

    async fn connect() -> Redis {
        Redis::connect(RedisConfig::at(server::Redis::shared().url()).prefix(format!("saga{}", number())))
            .await
            .unwrap()
    }

    #[test]
    fn a_saga_whose_process_ends_at_any_request_ends_with_each_effect_once_or_none() {
        let runtime = runtime();
        let redis = runtime.block_on(connect());
        crashes(&runtime, &(Arc::new(redis.store()) as Arc<dyn Store>));
    }

    #[test]
    fn orders_whose_processes_are_killed_are_completed_once_and_replied_to() {
        runtime().block_on(async {
            let redis = connect().await;
            let queue = |name: &str| Arc::new(redis.queue(name).unwrap()) as Arc<dyn Queue>;
            orders(Arc::new(redis.store()), queue("orders"), queue("replies")).await;
        });
    }
}

#[cfg(feature = "nats")]
mod nats {
    use steadfast::backend::nats::{Nats, NatsConfig};

    use super::*;
    use crate::server;

    async fn connect(url: String) -> Nats {
        let config = NatsConfig::at(url).prefix(format!("saga{}", number()));
        again("connect", || Nats::connect(config.clone())).await.0
    }

    async fn killed(url: String) {
        let nats = connect(url).await;
        let queue = async |name: &str| Arc::new(again("queue", || nats.queue(name)).await.0) as Arc<dyn Queue>;
        orders(Arc::new(nats.store()), queue("orders").await, queue("replies").await).await;
    }

    #[test]
    fn a_saga_whose_process_ends_at_any_request_ends_with_each_effect_once_or_none() {
        let runtime = runtime();
        let nats = runtime.block_on(connect(server::Nats::shared().url()));
        crashes(&runtime, &(Arc::new(nats.store()) as Arc<dyn Store>));
    }

    #[test]
    fn orders_whose_processes_are_killed_are_completed_once_and_replied_to() {
        runtime().block_on(killed(server::Nats::shared().url()));
    }

    #[test]
    fn a_saga_with_an_ordering_key_is_refused_before_anything_is_sent() {
        runtime().block_on(async {
            let nats = connect(server::Nats::shared().url()).await;
            let (store, queue) = (Arc::new(nats.store()), Arc::new(nats.queue("orders").await.unwrap()));
            let books = books("keys", store.clone(), false);
            let config = SchedulerConfig::default();
            let scheduler = Scheduler::new(saga("keys", store, &books, 1), queue.clone(), config).unwrap();
            let order = || Submission::new("42", State::new());
            let error = scheduler.submit(order().ordering_key("customer 9")).await.unwrap_err().to_string();
            assert!(error.contains("nats") && error.contains("groups"), "{error}");
            assert_eq!(queue.depth().await.unwrap().total(), 0);
            scheduler.submit(order()).await.unwrap();
            assert_eq!(queue.depth().await.unwrap().total(), 1);
        });
    }

    #[test]
    fn orders_on_a_cluster_whose_processes_are_killed_are_completed_once_and_replied_to() {
        runtime().block_on(killed(server::NatsCluster::shared().url()));
    }
}
