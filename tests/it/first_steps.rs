//! The snippets of the page of first steps, compared with the code here, which is run.
use std::{
    cell::Cell,
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use steadfast::{
    Pipeline,
    call::idempotent,
    circuit_breaker::{CircuitBreaker, CircuitBreakerConfig},
    leader_election::{LeaderElection, LeaderElectionConfig, Term},
    lease::StoreLease,
    retry::{Retry, RetryBudget, RetryBudgetConfig, RetryConfig},
    standard::Standard,
    store::{InMemoryStore, Key, Store, StoreError, StoreExt},
    time::Clock,
    timeout::Timeout,
};

const PAGE: &str = include_str!("../../src/_docs/first_steps.md");
const HERE: &str = include_str!("first_steps.rs");

type Tried = Result<(), Box<dyn std::error::Error>>;

/// Returns code without comments and white space.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or(""));
    lines.flat_map(str::split_whitespace).collect()
}

/// Asserts that the page contains the code between two marks of this file.
fn assert_page_shows(name: &str) {
    let (begin, end) = (format!("// Page: {name}\n"), format!("// Page: end of {name}\n"));
    let (_, rest) = HERE.split_once(&begin).unwrap();
    let (snippet, _) = rest.split_once(&end).unwrap();
    assert!(code(PAGE).contains(&code(snippet)), "the page does not show this:\n{snippet}");
}

struct Client;
struct Order {
    key: String,
}

impl Client {
    async fn charge(&self, account: &str, key: &str) -> Result<String, io::Error> {
        Ok(format!("{account} {key}"))
    }
}

#[test]
fn the_quick_start_is_explained_without_a_warning() -> Tried {
    let (_, time) = Clock::manual();
    let (client, account, order) = (Client, "7".to_owned(), Order { key: "42".to_owned() });
    // Page: quick start
    let budget = RetryBudget::new(RetryBudgetConfig::default())?;
    let payments = Pipeline::new()
        .then(Timeout::new(Duration::from_secs(3)))
        .then(Retry::builder(RetryConfig::interactive()).budget(&budget).build()?)
        .then(CircuitBreaker::builder(CircuitBreakerConfig::default()).name("payments").build()?)
        .then(Timeout::new(Duration::from_secs(1)));
    // Page: end of quick start
    let paid = async {
        // Page: call
        let receipt = payments.call(idempotent(|| client.charge(&account, &order.key))).await?;
        // Page: end of call
        Ok::<_, Box<dyn std::error::Error>>(receipt)
    };
    assert_eq!(time.block_on(paid)?, "7 42");
    assert_eq!(payments.explain().warnings(), [""; 0]);
    let explained = payments.explain_for(&idempotent(|| client.charge(&account, &order.key)));
    assert_eq!(explained.warnings(), [""; 0]);
    assert_page_shows("quick start");
    assert_page_shows("call");
    Ok(())
}

#[test]
fn the_document_of_the_standard_stack_is_explained_without_a_warning() -> Tried {
    let (_, rest) = PAGE.split_once("The whole stack can come from one document").unwrap();
    let (_, rest) = rest.split_once("```toml\n").unwrap();
    let (document, _) = rest.split_once("```").unwrap();
    let document = document.to_owned();
    // Page: standard stack
    let pipeline = Standard::builder(toml::from_str(&document)?).name("billing").build()?.into_pipeline();
    // Page: end of standard stack
    assert_eq!(pipeline.explain().warnings(), [""; 0], "{}", pipeline.explain());
    assert_page_shows("standard stack");
    Ok(())
}

thread_local! {
    static MADE: Cell<u32> = const { Cell::new(0) };
    static NIGHT: Cell<u64> = const { Cell::new(0) };
}

fn last_night() -> String {
    format!("night {}", NIGHT.get())
}

async fn make_report(night: &str) -> String {
    MADE.set(MADE.get() + 1);
    format!("report on {night}")
}

// Page: report
async fn report_on_last_night(store: &dyn Store, term: &Term) -> Result<(), StoreError> {
    let night = last_night();
    let key = Key::new("reports", &night);
    if store.get(key).await?.is_some() {
        return Ok(());
    }
    let report = make_report(&night).await;
    store.put_fenced(key, report, term.token()).await?;
    Ok(())
}
// Page: end of report

/// Runs the election of one process.
async fn nightly(
    store: Arc<InMemoryStore>,
    clock: Clock,
    host: &str,
    shutdown: impl Future<Output = ()>,
    terms: &Mutex<BTreeMap<String, Term>>,
) -> Tried {
    let leases = StoreLease::builder(store.clone()).clock(&clock).build()?;
    let election = LeaderElection::builder(Arc::new(leases), "nightly-report", LeaderElectionConfig::default())
        .candidate(host)
        .clock(&clock)
        .build()?;
    let noted = async |term: &Term| drop(terms.lock().unwrap().insert(host.to_owned(), term.clone()));
    #[rustfmt::skip]
    election.run(shutdown, async |term| {
        noted(&term).await;
    // Page: election
    loop {
        match report_on_last_night(&*store, &term).await {
            Ok(()) => {}
            Err(error) if error.is_fenced() => return,
            Err(error) => tracing::error!(%error, "no report, next try in a minute"),
        }
        tokio::select! {
            () = term.lost() => return,
            () = clock.sleep(Duration::from_secs(60)) => {}
        }
    }
    // Page: end of election
    }).await?;
    Ok(())
}

#[test]
fn the_nightly_report_is_made_once_a_night_over_a_change_of_leaders() {
    let (clock, time) = Clock::manual();
    let (store, terms) = (Arc::new(InMemoryStore::builder().clock(&clock).build()), Mutex::new(BTreeMap::new()));
    let (hour, begin) = (Duration::from_secs(3_600), clock.now());
    let nights = async {
        for night in 1..=3 {
            clock.sleep(hour * 24).await;
            NIGHT.set(night);
        }
        clock.sleep(hour).await;
    };
    // The first process leads for a day and a half; then its shutdown ends it at once.
    let first = async {
        nightly(store.clone(), clock.clone(), "a", clock.sleep(hour * 36), &terms).await.unwrap();
        assert!(clock.now() - begin < hour * 37, "{:?}", clock.now() - begin);
    };
    let second = async {
        clock.sleep(Duration::from_secs(30)).await;
        let never = std::future::pending();
        nightly(store.clone(), clock.clone(), "b", never, &terms).await.unwrap();
    };
    time.block_on(async {
        tokio::select! {
            () = nights => {}
            ((), ()) = async { tokio::join!(first, second) } => unreachable!(),
        }
    });
    let reports = time.block_on(store.scan_all(steadfast::store::Scan::partition("reports"))).unwrap();
    let reports: Vec<_> = reports.iter().map(|row| String::from_utf8_lossy(&row.value).into_owned()).collect();
    assert_eq!(reports, ["report on night 0", "report on night 1", "report on night 2", "report on night 3"]);
    assert_eq!((MADE.get(), terms.lock().unwrap().len()), (4, 2), "four reports, by two leaders");
    // A late report of the first leader is refused.
    let late = terms.lock().unwrap()["a"].clone();
    let current = terms.lock().unwrap()["b"].clone();
    let delete = store.delete(Key::new("reports", "night 3"), Default::default());
    assert!(time.block_on(delete).unwrap());
    let error = time.block_on(report_on_last_night(&*store, &late)).unwrap_err();
    assert!(error.is_fenced(), "{error}");
    time.block_on(report_on_last_night(&*store, &current)).unwrap();
    assert_page_shows("report");
    assert_page_shows("election");
}
