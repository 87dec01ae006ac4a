//! Views: rows that follow logs and topics.
mod attacks;
mod changed;
mod drops;
mod faults;
mod reads;
mod rebuilds;
mod stops;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use steadfast::{
    Builder,
    codec::Codec,
    event_sourcing::{Commit, EventCodec, EventStore, Expected, NewEvent, Token},
    materialized_view::{Projection, Sourced, View, ViewConfig, ViewError, ViewEvent},
    store::{InMemoryStore, Store},
    testing::{PortAnswer, PortCall, ScriptedPort},
    time::Clock,
};

#[cfg(any(feature = "postgres", feature = "redis"))]
pub(crate) use faults::ends_at_any;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fact {
    /// These products were sold together, each for so much.
    Sold(Vec<(String, u64)>),
    /// A product is no longer offered: its row goes.
    Ended(String),
    /// Changes no row.
    Viewed,
}

impl Fact {
    fn name(&self) -> &'static str {
        match self {
            Self::Sold(_) => "Sold",
            Self::Ended(_) => "Ended",
            Self::Viewed => "Viewed",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Total {
    pub(crate) n: u64,
    pub(crate) cents: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Sales;

impl Projection for Sales {
    type Event = Fact;
    type Row = Total;

    fn keys(&self, event: &Sourced<Fact>) -> Vec<String> {
        match &event.event {
            Fact::Sold(products) => products.iter().map(|(product, _)| product.clone()).collect(),
            Fact::Ended(product) => vec![product.clone()],
            Fact::Viewed => Vec::new(),
        }
    }

    fn fold(&self, key: &str, row: Option<Total>, event: &Sourced<Fact>) -> Option<Total> {
        let mut total = row.unwrap_or_default();
        match &event.event {
            Fact::Sold(products) => {
                for (_, cents) in products.iter().filter(|(product, _)| product == key) {
                    (total.n, total.cents) = (total.n + 1, total.cents + cents);
                }
                Some(total)
            }
            Fact::Ended(_) => None,
            Fact::Viewed => Some(total),
        }
    }
}

/// The rows of these events.
pub(crate) fn naive(facts: &[Fact]) -> BTreeMap<String, Total> {
    let mut rows = BTreeMap::<String, Total>::new();
    for fact in facts {
        match fact {
            Fact::Sold(products) => {
                for (product, cents) in products {
                    let total = rows.entry(product.clone()).or_default();
                    (total.n, total.cents) = (total.n + 1, total.cents + cents);
                }
            }
            Fact::Ended(product) => drop(rows.remove(product)),
            Fact::Viewed => {}
        }
    }
    rows
}

fn json<T: Serialize + for<'a> Deserialize<'a> + 'static>() -> Codec<T> {
    Codec::new(serde_json::to_vec, |bytes| serde_json::from_slice(bytes))
}

pub(crate) fn events() -> EventCodec<Fact> {
    EventCodec::new(json(), Fact::name)
}

fn sold(product: &str, cents: u64) -> Fact {
    Fact::Sold(vec![(product.to_owned(), cents)])
}

/// A mixed sequence of facts about five products.
fn facts(n: u64) -> Vec<Fact> {
    let product = |at: u64| format!("tv-{}", at % 5);
    let fact = |at: u64| match at % 7 {
        3 => Fact::Viewed,
        6 if at.is_multiple_of(4) => Fact::Ended(product(at)),
        5 => Fact::Sold(vec![(product(at), at), (product(at + 1), 1), (product(at), 2)]),
        _ => sold(&product(at), at),
    };
    (0..n).map(fact).collect()
}

/// Commits each fact by itself, and returns the token of the last.
pub(crate) async fn commit(log: &EventStore, facts: &[Fact]) -> Token {
    for fact in facts {
        let event: NewEvent = events().encode(fact).unwrap();
        log.commit(Commit::unnamed().append("sales", Expected::Any, [event])).await.unwrap();
    }
    log.token().await.unwrap()
}

fn memory() -> Arc<dyn Store> {
    Arc::new(InMemoryStore::new())
}

pub(crate) fn builder(store: &Arc<dyn Store>, log: &EventStore, config: ViewConfig) -> Builder<View<Sales>> {
    View::builder(store.clone(), "sales", Sales, json(), config).source(log.topic(), events())
}

fn view(store: &Arc<dyn Store>, log: &EventStore) -> View<Sales> {
    builder(store, log, ViewConfig::default()).build().unwrap()
}

/// A view whose requests to the store take a millisecond each, so that others run meanwhile.
fn slow_view(store: &Arc<dyn Store>, log: &EventStore, config: ViewConfig) -> View<Sales> {
    let port = ScriptedPort::new(&Clock::tokio());
    port.by(|_| PortAnswer::pass().request_takes(Duration::from_millis(1)));
    builder(&port.store(store.clone()), log, config).build().unwrap()
}

/// Runs a projector for some time.
async fn run_for(view: &View<Sales>, time: Duration) -> Result<(), ViewError> {
    view.run(Clock::tokio().sleep(time)).await
}

/// Waits for a future, at most this long.
async fn within<F: Future>(time: Duration, future: F) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = future => Some(output),
        () = async { Clock::tokio().sleep(time).await } => None,
    }
}

/// Compares all rows with those of the facts.
async fn assert_rows(view: &View<Sales>, facts: &[Fact]) {
    let wanted = naive(facts);
    for at in 0..5 {
        let key = format!("tv-{at}");
        assert_eq!(view.get(&key).await.unwrap().row, wanted.get(&key).copied(), "{key}");
    }
    let state = view.state().await.unwrap();
    assert_eq!(state.rows, wanted.len() as u64);
    let bytes: usize = wanted.values().map(|row| serde_json::to_vec(row).unwrap().len()).sum();
    assert_eq!(state.bytes, bytes as u64);
}

/// The events of a view so far.
async fn told(events: &mut steadfast::observe::Subscription<ViewEvent>) -> Vec<ViewEvent> {
    let mut told = Vec::new();
    while let Some(Ok(event)) = within(Duration::from_millis(1), events.recv()).await {
        told.push(event.what);
    }
    told
}
