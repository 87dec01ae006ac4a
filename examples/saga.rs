//! Trips of five bookings at five services. One booking is made although its reply never comes, one tour is sold out, one
//! process dies in the middle of a trip, and one trip is cancelled after it was complete: each trip has all of its bookings
//! once, or none.
#![allow(missing_docs, reason = "a program has no readers from outside")]
#[path = "common/mod.rs"]
mod common;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use common::{Answer, Http, Result, answer, end, no_arguments, say, serve};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use steadfast::{
    BoxedPipeline, FailureKind, Pipeline, Verdict,
    codec::Codec,
    saga::{
        Action, Compensated, Compensation, Executed, Participant, Plan, Saga, SagaConfig, SagaEvent, SagaOutcome, Step,
        StepOutcome,
    },
    store::{DeleteOptions, InMemoryStore, Precondition, Scan, Store, StoreError, StoreExt, Write},
    time::Clock,
    timeout::Timeout,
};

const SERVICES: [&str; 5] = ["seat", "room", "car", "tour", "ticket"];
const TRIPS: usize = 20;
/// Its room is booked, and the reply never comes.
const UNANSWERED: usize = 3;
/// Its tour is sold out.
const SOLD_OUT: usize = 7;
/// The process that books it dies.
const KILLED: usize = 11;
/// Cancelled when it is complete.
const CANCELLED: usize = 13;

// ---- the services: each knows what it did by the keys of the requests ------------------------------------------------------

/// Handles `/SERVICE/book/KEY` and `/SERVICE/cancel/KEY`.
async fn handle(store: Arc<InMemoryStore>, numbers: Arc<AtomicU64>, path: String) -> Result<Answer> {
    let mut parts = path.trim_start_matches('/').splitn(3, '/');
    let (Some(service), Some(verb), Some(key)) = (parts.next(), parts.next(), parts.next()) else {
        return Ok(answer(404, ""));
    };
    let bookings = Participant::new(store, service)?;
    if verb == "cancel" {
        let rows = match bookings.reply(key).await? {
            Some(booking) => vec![Write::delete(row(&String::from_utf8_lossy(&booking)), DeleteOptions::new())],
            None => Vec::new(),
        };
        let done = bookings.compensate(key, rows).await?;
        return Ok(answer(200, if done == Compensated::Applied { "cancelled" } else { "nothing to cancel" }));
    }
    if key.contains(&format!("/{}/tour", name(SOLD_OUT))) {
        return Ok(answer(409, "sold out"));
    }
    let booking = format!("{service}-{}", numbers.fetch_add(1, Relaxed));
    let rows = vec![Write::put(row(&booking), key.to_owned(), Precondition::Absent)];
    let executed = bookings.execute(key, rows, booking.clone()).await?;
    if executed == Executed::Applied && key.contains(&format!("/{}/room", name(UNANSWERED))) {
        Clock::tokio().sleep(Duration::from_secs(3600)).await;
    }
    Ok(match executed {
        Executed::Applied => answer(200, booking),
        Executed::AlreadyApplied(booking) => answer(200, String::from_utf8_lossy(&booking)),
        _ => answer(410, "cancelled before"),
    })
}

fn row(booking: &str) -> String {
    format!("b/{booking}")
}

fn name(trip: usize) -> String {
    format!("trip-{trip}")
}

// ---- the saga ---------------------------------------------------------------------------------------------------------------

/// Bookings by service.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Trip {
    bookings: BTreeMap<String, String>,
}

/// An answer that is no booking.
#[derive(Debug)]
enum Refusal {
    Status(u16),
    Connection(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "status {status}"),
            Self::Connection(error) => f.write_str(error),
        }
    }
}

fn verdict(answered: &std::result::Result<String, Refusal>) -> Verdict {
    match answered {
        Ok(_) => Verdict::success(),
        Err(Refusal::Status(400..500)) => Verdict::failure(FailureKind::Client),
        Err(Refusal::Status(_) | Refusal::Connection(_)) => Verdict::failure(FailureKind::Server),
    }
}

/// A step at one service.
#[derive(Clone)]
struct Booking {
    http: Http,
    server: SocketAddr,
    calls: BoxedPipeline<String, Refusal>,
    /// This process dies in the middle of its trip: the step never ends.
    dies: bool,
}

impl Booking {
    async fn call(&self, step: &Step<Trip>, verb: &str) -> std::result::Result<String, steadfast::CallError<Refusal>> {
        let path = format!("/{}/{verb}/{}", step.name(), step.action_key());
        let ask = || async {
            let answered = self.http.get(self.server, &path).await;
            let answered = answered.map_err(|error| Refusal::Connection(error.to_string()))?;
            match answered.status().as_u16() {
                200 => Ok(String::from_utf8_lossy(answered.body()).into_owned()),
                status => Err(Refusal::Status(status)),
            }
        };
        self.calls.call(ask).await
    }
}

impl Action<Trip> for Booking {
    async fn execute(&self, step: &Step<Trip>) -> StepOutcome<Trip> {
        let booked = self.call(step, "book").await;
        if self.dies && step.name() == "car" {
            std::future::pending::<()>().await;
        }
        let service = step.name().to_owned();
        step.of_call(booked, |trip, booking| drop(trip.bookings.insert(service, booking)))
    }
}

impl Compensation<Trip> for Booking {
    async fn compensate(&self, step: &Step<Trip>) -> StepOutcome<Trip> {
        let cancelled = self.call(step, "cancel").await;
        let service = step.name().to_owned();
        step.of_call(cancelled, move |trip, _| drop(trip.bookings.remove(&service)))
    }
}

fn saga(store: &Arc<InMemoryStore>, booking: &Booking) -> Result<Saga<Trip>> {
    let step = || booking.clone();
    let plan = Plan::new()
        .parallel(|plan| plan.step("seat", step()).step("room", step()))
        .step("car", step())
        .step("tour", step())
        .step("ticket", step());
    let config = SagaConfig::default();
    let retry = config.retry.between(Duration::from_millis(10), Duration::from_millis(100));
    let codec = Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes));
    Ok(Saga::builder("trip", store.clone(), codec, plan, config.retry(retry))
        .on_event(|event| match &event.what {
            SagaEvent::AttemptFailed { id, step, reason, .. } => say(format!("{id}: {step}: {reason}")),
            SagaEvent::Compensating { id, reason, .. } => say(format!("{id}: is compensated: {reason}")),
            SagaEvent::TakenOver { id, epoch } => say(format!("{id}: taken over, epoch {epoch}")),
            _ => {}
        })
        .build()?)
}

#[tokio::main]
async fn main() -> ExitCode {
    no_arguments("Books trips at five services; each trip has all of its bookings once, or none");
    end(shown().await)
}

async fn shown() -> Result<(Value, bool)> {
    let (bookings, numbers) = (Arc::new(InMemoryStore::new()), Arc::new(AtomicU64::new(1)));
    let server = serve({
        let bookings = bookings.clone();
        move |request| {
            let handled = handle(bookings.clone(), numbers.clone(), request.uri().path().to_owned());
            async move { handled.await.unwrap_or_else(|error| answer(500, error)) }
        }
    })
    .await?;
    let timeout = Timeout::new(Duration::from_millis(300));
    let calls = Pipeline::new().then(timeout).classify(verdict).boxed();
    let booking = Booking { http: Http::new(), server, calls, dies: false };
    // In a service, a durable store.
    let records = Arc::new(InMemoryStore::new());
    let trips = saga(&records, &booking)?;

    let (mut completed, mut compensated) = (0, 0);
    for trip in 0..TRIPS {
        let id = name(trip);
        if trip == KILLED {
            let dies = saga(&records, &Booking { dies: true, ..booking.clone() })?;
            tokio::select! {
                _ = dies.run(&id, Trip::default()) => {}
                () = Clock::tokio().sleep(Duration::from_millis(100)) => say(format!("{id}: its process died")),
            }
            trips.resume(&id).await?;
        }
        match trips.run(&id, Trip::default()).await? {
            SagaOutcome::Completed(_) => completed += 1,
            SagaOutcome::Compensated { .. } => compensated += 1,
            other => return Err(format!("{id} is {other:?}").into()),
        }
    }
    trips.cancel(&name(CANCELLED), "the customer is ill").await?;
    (completed, compensated) = (completed - 1, compensated + 1);

    let (held, doubled) = count(&bookings).await?;
    let half_done = held.values().filter(|services| **services != SERVICES.len()).count();
    let left = trips.list_open().await?.len();
    let holds = (completed, compensated, held.len(), doubled, half_done, left) == (TRIPS - 2, 2, completed, 0, 0, 0);
    let bookings: usize = held.values().sum();
    let summary = json!({ "trips": TRIPS, "completed": completed, "compensated": compensated, "bookings": bookings,
        "double_bookings": doubled, "half_done": half_done, "left": left });
    Ok((summary, holds))
}

/// Returns the number of bookings of each trip that has any, and that of bookings with a key that has another one.
async fn count(store: &dyn Store) -> std::result::Result<(BTreeMap<String, usize>, usize), StoreError> {
    let (mut held, mut keys, mut all) = (BTreeMap::new(), std::collections::BTreeSet::new(), 0);
    for service in SERVICES {
        for row in store.scan_all(Scan::partition(service).prefix("b/")).await? {
            let key = String::from_utf8_lossy(&row.value).into_owned();
            let trip = key.split('/').nth(1).unwrap_or_default().to_owned();
            *held.entry(trip).or_default() += 1;
            keys.insert(key);
            all += 1;
        }
    }
    Ok((held, all - keys.len()))
}
