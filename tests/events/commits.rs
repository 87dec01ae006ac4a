//! Commits: all or nothing, in one order, each command once.
use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use futures::future::join_all;
use steadfast::{
    event_sourcing::{Commit, CommitError, EventStore, EventStoreConfig, Expected::*, NewEvent, Token},
    port::{Capability, Failure, PortErrorKind},
    store::{DeleteOptions, InMemoryStore, Key, Precondition, PutOptions, Sequence, Store, Write},
    time::Clock,
};

use crate::{
    append, event, kinds, log,
    unsteady::{Treat, Unsteady},
};

fn memory() -> Arc<dyn Store> {
    Arc::new(InMemoryStore::new())
}

/// Four handles with four writers each append to 100 streams: one order for all, and no number missing.
pub(crate) async fn writers_of_four_handles(stores: [Arc<dyn Store>; 4], commits: u64) {
    let mut tasks = Vec::new();
    for (handle, store) in stores.iter().enumerate() {
        let log = log(store).await;
        for task in 0..4 {
            let log = log.clone();
            tasks.push(tokio::spawn(async move {
                for n in 0..commits {
                    let id = format!("{handle}.{task}.{n}");
                    let (one, other) = ((n * 7 + task) % 100, (n * 13 + 50) % 100);
                    let mut commit = append(&id, &format!("s{one}"), Any, &id);
                    if one != other {
                        commit = commit.append(format!("s{other}"), Any, [event(&id), event(&id)]);
                    }
                    log.commit(commit).await.unwrap();
                }
            }));
        }
    }
    for done in join_all(tasks).await {
        done.unwrap();
    }
    let mut orders = Vec::new();
    for store in &stores {
        let log = log(store).await;
        let all = log.commits(0, usize::MAX).await.unwrap();
        assert!(all.iter().zip(1..).all(|(commit, number)| commit.number == number));
        let mut of_streams: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for event in all.iter().flat_map(|commit| &commit.events) {
            of_streams.entry(event.stream.clone()).or_default().push(event.event.kind.clone());
        }
        for (stream, expected) in &of_streams {
            let events = log.read(stream, 0, usize::MAX).await.unwrap();
            assert_eq!(kinds(&events), *expected, "{stream}");
            assert!(events.iter().zip(1..).all(|(event, version)| event.version == version));
        }
        orders.push(all.into_iter().map(|commit| commit.command).collect::<Vec<_>>());
    }
    assert_eq!(orders[0].len() as u64, 16 * commits);
    assert!(orders.iter().all(|order| *order == orders[0]));
}

// Guarantee: event_sourcing 1.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_reader_sees_one_order_of_commits_and_none_in_part() {
    let store = memory();
    writers_of_four_handles([store.clone(), store.clone(), store.clone(), store], 40).await;
}

// Guarantee: event_sourcing 2.
#[tokio::test(start_paused = true)]
async fn a_refused_commit_says_why_and_writes_nothing() {
    let store = memory();
    let log = log(&store).await;
    let first = append("1", "a", Version(0), "A").claim("badge").write(Write::put("u/row", "1", Precondition::Absent));
    let done = log.commit(first).await.unwrap();
    assert_eq!((done.token.to_string().as_str(), done.versions["a"], done.is_repeated), ("log@1", 1, false));

    let before = log.token().await.unwrap();
    let refuse = async |commit: Commit| log.commit(commit.append("b", Any, [event("B")])).await.unwrap_err();
    let conflict = |error, is: (&str, u64, u64)| match error {
        CommitError::Conflict { stream, expected, actual } => assert_eq!((stream.as_str(), expected, actual), is),
        other => panic!("{other}"),
    };
    conflict(refuse(append("2", "a", Version(0), "A")).await, ("a", 0, 1));
    conflict(refuse(append("2", "a", Version(7), "A")).await, ("a", 7, 1));
    for expected in [0, 2, 9, u64::MAX] {
        conflict(refuse(Commit::new("2").expect("a", expected)).await, ("a", expected, 1));
    }
    match refuse(Commit::new("2").claim("badge")).await {
        CommitError::Taken { claim, by } => assert_eq!((claim.as_str(), by.as_str()), ("badge", "a")),
        other => panic!("{other}"),
    }
    match refuse(Commit::new("2").write(Write::put("u/row", "2", Precondition::Absent))).await {
        CommitError::RowConflict { row } => assert_eq!(row, "u/row"),
        other => panic!("{other}"),
    }
    assert_eq!(log.token().await.unwrap(), before);
    assert_eq!(log.version("b").await.unwrap(), 0);

    // What was refused may be tried again under its id.
    let again = append("2", "b", Version(0), "B").expect("a", 1).expect("c", 0);
    assert_eq!(log.commit(again).await.unwrap().token.number(), 2);
    assert_eq!(log.row("u/row").await.unwrap().unwrap().value, "1");
}

// Guarantee: event_sourcing 2.
#[tokio::test(start_paused = true)]
async fn of_two_commits_that_each_read_what_the_other_writes_one_fails() {
    let store = memory();
    let (one, other) = (log(&store).await, log(&store).await);
    let doctor = |id: &str, own: &str, reads: &str| append(id, own, Version(0), "OffDuty").expect(reads, 0);
    for apart in [true, false] {
        let (a, b) = (format!("a{apart}"), format!("b{apart}"));
        let second = if apart { &other } else { &one };
        let (first, second) = futures::join!(
            one.commit(doctor(&format!("1{apart}"), &a, &b)),
            second.commit(doctor(&format!("2{apart}"), &b, &a))
        );
        assert_eq!(u8::from(first.is_ok()) + u8::from(second.is_ok()), 1, "{first:?} {second:?}");
    }
}

// Guarantee: event_sourcing 2.
#[tokio::test(start_paused = true)]
async fn a_claim_is_unique_until_it_is_released() {
    let store = memory();
    let log = log(&store).await;
    log.commit(append("1", "a", Any, "A").claim("badge/117")).await.unwrap();
    assert_eq!(log.holder("badge/117").await.unwrap().as_deref(), Some("a"));
    log.commit(append("2", "b", Any, "B").claim("badge/117")).await.unwrap_err();
    log.commit(append("3", "a", Any, "A").release("badge/117").release("nobody's")).await.unwrap();
    assert_eq!(log.holder("badge/117").await.unwrap(), None);
    log.commit(append("2", "b", Any, "B").claim("badge/117")).await.unwrap();
}

// Guarantee: event_sourcing 3.
#[tokio::test(start_paused = true)]
async fn a_command_is_accepted_once_whatever_the_versions_are_by_then_and_forgotten_later() {
    let store = memory();
    let log = log(&store).await;
    let book = || append("cmd", "a", Version(0), "Booked");
    log.commit(book()).await.unwrap();
    log.commit(append("other", "a", Version(1), "A")).await.unwrap();
    let again = log.commit(book()).await.unwrap();
    assert!(again.is_repeated && again.token.number() >= 1 && again.versions.is_empty());
    match log.commit(append("cmd", "b", Any, "Booked")).await {
        Err(CommitError::CommandReused { command, by }) => assert_eq!((command.as_str(), by.as_str()), ("cmd", "a")),
        other => panic!("{other:?}"),
    }
    for _ in 0..2 {
        log.commit(Commit::unnamed().append("a", Any, [event("A")])).await.unwrap();
    }
    assert_eq!(log.version("a").await.unwrap(), 4);
    tokio::time::advance(EventStoreConfig::default().remember).await;
    log.commit(book()).await.unwrap_err();
    assert!(!log.commit(append("cmd", "b", Any, "Booked")).await.unwrap().is_repeated);
}

// Guarantee: event_sourcing 5.
#[tokio::test(start_paused = true)]
async fn commits_that_meet_share_a_request_and_none_fails_for_the_cause_of_another() {
    let unsteady = Arc::new(Unsteady::default());
    let store: Arc<dyn Store> = unsteady.clone();
    let log = log(&store).await;
    let all = join_all((0..40).map(|n| log.commit(append(&n.to_string(), &format!("s{n}"), Version(0), "A")))).await;
    assert!(all.into_iter().all(|done| done.is_ok()));
    let batches = unsteady.batches.swap(0, SeqCst);
    assert!(batches <= 3, "{batches} requests for 40 commits");

    // One of them is refused.
    let all = join_all((0..40).map(|n| {
        let expected = if n == 20 { Version(9) } else { Version(1) };
        log.commit(append(&format!("again {n}"), &format!("s{n}"), expected, "A"))
    }));
    for (n, done) in all.await.into_iter().enumerate() {
        assert_eq!(done.is_ok(), n != 20, "{n}: {done:?}");
    }
}

// Guarantee: event_sourcing 5.
#[tokio::test(start_paused = true)]
async fn a_dropped_caller_disturbs_nobody_and_its_commit_is_whole_or_absent() {
    for polls in 0..6 {
        let unsteady: Arc<dyn Store> = Arc::new(Unsteady::default());
        let log = log(&unsteady).await;
        let commit = append("dropped", "a", Any, "A").append("b", Any, [event("B")]).claim("c");
        {
            let mut dropped = Box::pin(log.commit(commit.clone()));
            for _ in 0..polls {
                if futures::poll!(&mut dropped).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        log.commit(append("next", "d", Version(0), "D")).await.unwrap();
        let versions = (log.version("a").await.unwrap(), log.version("b").await.unwrap());
        assert_eq!(versions.0, versions.1);
        assert_eq!(log.holder("c").await.unwrap().is_some(), versions.0 == 1);
        assert_eq!(log.commit(commit).await.unwrap().is_repeated, versions.0 == 1);
        assert_eq!((log.version("a").await.unwrap(), log.state().pending), (1, 0));
    }
}

// Guarantee: event_sourcing 6.
#[tokio::test(start_paused = true)]
async fn a_hole_a_damaged_row_and_one_of_a_newer_release_are_errors_and_never_skipped() {
    let store = memory();
    let log = log(&store).await;
    for n in 0..5 {
        log.commit(append(&n.to_string(), "a", Any, "A")).await.unwrap();
    }
    let events = Sequence::new("e/1/a/");
    let row = events.row(3);
    let (key, options) = (Key::new("events/log", &row), PutOptions::new());
    let whole = store.get(key).await.unwrap().unwrap().value;
    let kind_of = async || log.read("a", 0, 9).await.unwrap_err().kind();
    store.put(key, whole.slice(..4), options).await.unwrap();
    assert_eq!(kind_of().await, PortErrorKind::Corrupt);
    let mut newer = whole.to_vec();
    newer[0] = 2;
    store.put(key, newer.into(), options).await.unwrap();
    assert_eq!(kind_of().await, PortErrorKind::TooNew);
    store.delete(key, DeleteOptions::new()).await.unwrap();
    assert_eq!(kind_of().await, PortErrorKind::Corrupt);
    assert!(log.read("a", 0, 9).await.unwrap_err().to_string().contains("00003\" of the log is missing"));
    assert_eq!(log.read("a", 3, 9).await.unwrap().len(), 2);

    store.delete(Key::new("events/log", &Sequence::new("c/").row(2)), DeleteOptions::new()).await.unwrap();
    for after in [0, 1] {
        assert_eq!(log.commits(after, 9).await.unwrap_err().kind(), PortErrorKind::Corrupt, "after {after}");
    }
    assert_eq!(log.commits(2, 9).await.unwrap().len(), 3);
    store.put(Key::new("events/log", "log"), "\u{2}".into(), options).await.unwrap();
    assert_eq!(EventStore::open(store, "log").await.unwrap_err().kind(), PortErrorKind::TooNew);
}

// Guarantee: event_sourcing 6.
#[tokio::test(start_paused = true)]
async fn a_stream_whose_name_begins_with_that_of_another_is_another_stream() {
    let unsteady = Arc::new(Unsteady::default());
    let store: Arc<dyn Store> = unsteady.clone();
    let log = log(&store).await;
    let inner = "a/00000000000000000001";
    for n in 0..700 {
        log.commit(append(&format!("inner {n}"), inner, Any, "Inner")).await.unwrap();
        if n < 3 {
            log.commit(append(&format!("a {n}"), "a", Version(n), "A")).await.unwrap();
        }
    }
    unsteady.rows.store(0, SeqCst);
    assert_eq!(kinds(&log.read("a", 0, 9).await.unwrap()), ["A"; 3]);
    assert_eq!((log.version("a").await.unwrap(), log.version(inner).await.unwrap()), (3, 700));
    assert_eq!(unsteady.rows.load(SeqCst), 5, "rows of the other stream were read");
}

// Guarantee: event_sourcing 8.
#[tokio::test(start_paused = true)]
async fn what_breaks_a_rule_is_refused_by_the_name_of_the_field_before_anything_is_sent() {
    let unsteady = Arc::new(Unsteady::default());
    let store: Arc<dyn Store> = unsteady.clone();
    let log = log(&store).await;
    let whole = || append("1", "a", Any, "A");
    let long = "x".repeat(2000);
    let many = (0..1000).map(|_| event("A"));
    let refused = [
        (Commit::new("1"), "events"),
        (Commit::new("1").append("a", Any, []), "events"),
        (append("", "a", Any, "A"), "id"),
        (append(&long, "a", Any, "A"), "id"),
        (append("1", "", Any, "A"), "stream"),
        (append("1", &long, Any, "A"), "stream"),
        (append("1", "a", Any, ""), "kind"),
        (Commit::new("1").append("a", Any, [event("A").schema(0)]), "schema"),
        (whole().append("a", Any, [event("A")]), "stream"),
        (whole().expect("a", 0), "expect"),
        (whole().expect("b", 0).expect("b", 0), "expect"),
        (whole().claim(""), "claim"),
        (whole().claim("c").release("c"), "writes"),
        (whole().write(Write::put("stock/7", "", Precondition::Any)), "row"),
        (whole().write(Write::append("u/log/", "")), "row"),
        (Commit::new("1").append("a", Any, many), "writes"),
        (Commit::new("1").append("a", Any, [NewEvent::new("A", vec![0; 65 << 20])]), "value"),
    ];
    for (commit, field) in refused {
        let error = log.commit(commit).await.unwrap_err();
        assert_eq!(error.backend().map(|error| error.kind()), Some(PortErrorKind::Invalid), "{error}");
        assert!(error.to_string().contains(&format!("`{field}`")), "names no {field:?}: {error}");
    }
    assert_eq!(unsteady.batches.load(SeqCst), 0);
    assert_eq!(log.row("stock/7").await.unwrap_err().kind(), PortErrorKind::Invalid);
}

// Guarantee: event_sourcing 8.
#[tokio::test(start_paused = true)]
async fn a_store_without_a_capability_is_refused_by_its_name() {
    for lacks in [Capability::OrderedAppend, Capability::Linearizable, Capability::TimeToLive] {
        let mut store = Unsteady::default();
        store.lacks = Some(lacks);
        let error = EventStore::open(Arc::new(store), "log").await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Unsupported);
        assert!(error.to_string().contains(lacks.as_str()), "{error}");
    }
    for (config, field) in [
        (EventStoreConfig::default().remember(Duration::from_secs(30)), "remember"),
        (EventStoreConfig::default().max_pending(0), "max_pending"),
        (EventStoreConfig::default().max_batch(0), "max_batch"),
    ] {
        let error = EventStore::builder(memory(), "log", config).build().await.unwrap_err();
        assert!(error.to_string().contains(&format!("`{field}`")), "{error}");
    }
    assert_eq!(EventStore::open(memory(), "").await.unwrap_err().kind(), PortErrorKind::Invalid);
}

// Guarantee: event_sourcing 8.
#[tokio::test(start_paused = true)]
async fn above_the_limit_of_pending_commits_a_commit_is_full_at_once() {
    let config = EventStoreConfig::default().max_pending(4);
    let log = EventStore::builder(Arc::new(Unsteady::default()), "log", config).build().await.unwrap();
    let all = join_all((0..6).map(|n| log.commit(append(&n.to_string(), "a", Any, "A")))).await;
    let full: Vec<_> = all.into_iter().filter_map(Result::err).collect();
    assert_eq!(full.len(), 2);
    assert!(full.iter().all(|error| error.backend().map(|error| error.kind()) == Some(PortErrorKind::Full)));
}

#[test]
fn outside_of_a_runtime_a_commit_says_so() {
    steadfast::time::block_on(async {
        let log = log(&memory()).await;
        let error = log.commit(append("1", "a", Any, "A")).await.unwrap_err();
        assert_eq!(error.backend().map(|error| error.kind()), Some(PortErrorKind::Closed));
    });
}

// Guarantee: event_sourcing 7.
#[tokio::test(start_paused = true)]
async fn a_trim_deletes_commits_but_never_the_last_and_streams_stay() {
    let log = log(&memory()).await;
    for n in 0..5 {
        log.commit(append(&n.to_string(), "a", Version(n), "A")).await.unwrap();
    }
    assert_eq!(log.trim(3).await.unwrap(), 2);
    for after in [0, 1, 2] {
        assert_eq!(log.commits(after, 9).await.unwrap()[0].number, 3);
    }
    assert_eq!((log.trim(99).await.unwrap(), log.trim(99).await.unwrap()), (2, 0));
    assert_eq!(log.commit(append("6", "a", Version(5), "A")).await.unwrap().token.number(), 6);
    assert_eq!(log.read("a", 0, 9).await.unwrap().len(), 6);
}

// A trim had no time limit: a store without an answer held it for ever.
#[tokio::test(start_paused = true)]
async fn a_trim_without_an_answer_ends_as_timed_out_and_the_next_one_goes_on() {
    let unsteady = Arc::new(Unsteady::default());
    let log = log(&(unsteady.clone() as Arc<dyn Store>)).await;
    for n in 0..5 {
        log.commit(append(&n.to_string(), "a", Version(n), "A")).await.unwrap();
    }
    unsteady.treat([Treat::Hangs]);
    let clock = Clock::tokio();
    let trimmed = futures::future::select(Box::pin(log.trim(4)), Box::pin(clock.sleep(Duration::from_secs(60)))).await;
    let futures::future::Either::Left((trimmed, _)) = trimmed else { panic!("it waits for ever") };
    assert_eq!(trimmed.unwrap_err().kind(), PortErrorKind::TimedOut);
    assert_eq!((log.trim(4).await.unwrap(), log.commits(0, 9).await.unwrap()[0].number), (3, 4));
}

// A trim of more commits than one page holds.
#[tokio::test(start_paused = true)]
async fn a_trim_of_several_pages_deletes_all_of_them() {
    let log = log(&memory()).await;
    join_all((0..1_203).map(|n| log.commit(append(&n.to_string(), "a", Any, "A")))).await;
    assert_eq!((log.trim(1_201).await.unwrap(), log.commits(0, 9).await.unwrap()[0].number), (1_200, 1_201));
}

// Guarantee: event_sourcing 3.
// Without a version, the release of a command that was forgotten frees the claim of the next holder.
#[tokio::test(start_paused = true)]
async fn a_release_that_is_repeated_when_it_is_forgotten_conflicts_by_the_version_of_the_holders_stream() {
    let (clock, remember) = (Clock::tokio(), Duration::from_secs(60));
    let config = EventStoreConfig::default().remember(remember);
    let log = EventStore::builder(memory(), "log", config).build().await.unwrap();
    log.commit(append("take", "a", Version(0), "Badged").claim("badge")).await.unwrap();
    let returns = || append("return", "a", Version(1), "Returned").release("badge");
    log.commit(returns()).await.unwrap();
    log.commit(append("other", "b", Version(0), "Badged").claim("badge")).await.unwrap();
    clock.sleep(remember * 2).await;
    assert!(matches!(log.commit(returns()).await, Err(CommitError::Conflict { actual: 2, .. })));
    assert_eq!(log.holder("badge").await.unwrap().as_deref(), Some("b"));
}

// Guarantee: event_sourcing 5.
#[tokio::test(start_paused = true)]
async fn a_log_counts_its_commits_by_their_outcomes() {
    let unsteady = Arc::new(Unsteady::default());
    let log = log(&(unsteady.clone() as Arc<dyn Store>)).await;
    let commits = (0..5).map(|n| log.commit(append(&n.to_string(), &format!("s{n}"), Version(0), "A")));
    assert!(join_all(commits).await.iter().all(Result::is_ok));
    unsteady.treat([Treat::Loses]);
    log.commit(append("5", "a", Any, "A")).await.unwrap();
    assert!(log.commit(append("5", "a", Any, "A")).await.unwrap().is_repeated);
    log.commit(append("6", "a", Version(7), "A")).await.unwrap_err();
    *unsteady.is_away.lock().unwrap() = true;
    log.commit(append("7", "a", Any, "A")).await.unwrap_err();
    let state = log.state();
    assert_eq!((state.committed, state.repeated, state.refused, state.failed), (6, 1, 1, 1));
    // The first alone, the four others together. The last one was not answered either.
    assert_eq!((state.requests, state.lost_replies, state.pending), (6, 2, 0));
}

#[test]
fn a_token_that_is_none_is_refused() {
    for text in ["", "log", "log@", "@7", "log@x", "log@-1", "log@+5", "log@ 5"] {
        assert!(text.parse::<Token>().is_err(), "{text:?}");
    }
    assert_eq!("a@b@7".parse::<Token>().unwrap().log(), "a@b");
}
