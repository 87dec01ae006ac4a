//! Lost replies: a commit is applied once, or the error says that it may have been applied.
use std::{
    sync::{Arc, Mutex, atomic::Ordering::SeqCst},
    time::Duration,
};

use futures::future::join_all;
use steadfast::{
    event_sourcing::{Committed, EventStore, EventStoreConfig, Expected::*},
    port::{Failure, PortErrorKind},
    store::Store,
    time::Clock,
};

use tokio::task::JoinHandle;

use crate::{
    append, event, log,
    unsteady::{Treat, Unsteady},
};

fn unsteady() -> (Arc<Unsteady>, Arc<dyn Store>) {
    let unsteady = Arc::new(Unsteady::default());
    (unsteady.clone(), unsteady)
}

// Guarantee: event_sourcing 4.
#[tokio::test(start_paused = true)]
async fn a_commit_that_was_applied_and_whose_reply_is_lost_has_its_own_number() {
    let (unsteady, store) = unsteady();
    let log = log(&store).await;
    log.commit(append("before", "a", Version(0), "A")).await.unwrap();
    unsteady.treat([Treat::Loses]);
    let done = log.commit(append("cmd", "a", Version(1), "A")).await.unwrap();
    assert_eq!((done.token.number(), done.is_repeated, done.versions["a"]), (2, false, 2));
}

// Guarantee: event_sourcing 4.
#[tokio::test(start_paused = true)]
async fn a_commit_to_any_version_whose_reply_is_lost_has_the_version_that_the_store_gave() {
    let (unsteady, store) = unsteady();
    let log = log(&store).await;
    log.commit(append("before", "a", Version(0), "A")).await.unwrap();
    unsteady.treat([Treat::Loses]);
    let commit = append("cmd", "a", Any, "A").append("b", Any, [event("B"), event("B")]);
    let done = log.commit(commit).await.unwrap();
    assert_eq!((done.is_repeated, done.versions["a"], done.versions["b"]), (false, 2, 2));
}

// Guarantee: event_sourcing 4.
#[tokio::test(start_paused = true)]
async fn a_command_of_a_dead_process_with_an_open_request_is_applied_once_by_another_one() {
    // The first process dies behind its lost reply, or behind the mark that it put.
    for died_at in [[Treat::Keeps, Treat::Keeps], [Treat::Hangs, Treat::Hangs], [Treat::Keeps, Treat::Hangs]] {
        let (unsteady, store) = unsteady();
        let tasks: Arc<Mutex<Vec<JoinHandle<()>>>> = Arc::default();
        let spawned = tasks.clone();
        let dies = EventStore::builder(store.clone(), "log", EventStoreConfig::default())
            .spawner(move |task| spawned.lock().unwrap().push(tokio::spawn(task)));
        let dies = dies.build().await.unwrap();
        unsteady.treat(died_at);
        let mut asked = Box::pin(dies.commit(append("cmd", "a", Any, "A")));
        while unsteady.batches.load(SeqCst) < 2 {
            assert!(futures::poll!(&mut asked).is_pending());
            Clock::tokio().sleep(Duration::from_millis(50)).await;
        }
        drop(asked);
        tasks.lock().unwrap().iter().for_each(JoinHandle::abort);
        unsteady.treat_well();
        let next = log(&store).await;
        assert!(!next.commit(append("cmd", "a", Any, "A")).await.unwrap().is_repeated);
        assert_eq!(unsteady.apply_kept().await, 0, "a request of the dead process was applied, too");
        assert!(next.commit(append("cmd", "a", Any, "A")).await.unwrap().is_repeated);
        assert_eq!(next.version("a").await.unwrap(), 1);
    }
}

// Guarantee: event_sourcing 4.
#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_late_is_not_applied_beside_its_repetition() {
    for times in 1..4 {
        let (unsteady, store) = unsteady();
        let log = log(&store).await;
        unsteady.treat(std::iter::repeat_n(Treat::Keeps, times));
        let done = log.commit(append("cmd", "a", Any, "A")).await.unwrap();
        assert_eq!((done.token.number(), done.versions["a"]), (1, 1));
        assert_eq!(unsteady.apply_kept().await, 0, "a late request was applied, too");
        assert_eq!(log.version("a").await.unwrap(), 1);
        assert!(log.commit(append("cmd", "a", Any, "A")).await.unwrap().is_repeated);
    }
}

// Guarantee: event_sourcing 4.
#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_late_is_not_applied_after_its_commit_was_refused() {
    let (unsteady, store) = unsteady();
    let log = log(&store).await;
    log.commit(append("holder", "holder", Any, "A").claim("badge")).await.unwrap();
    unsteady.treat([Treat::Keeps]);
    log.commit(append("cmd", "a", Any, "A").claim("badge")).await.unwrap_err();
    log.commit(append("ends", "holder", Any, "A").release("badge")).await.unwrap();
    assert_eq!(unsteady.apply_kept().await, 0, "it was refused, and took effect later");
    // The command may be tried again under its id.
    assert!(!log.commit(append("cmd", "a", Any, "A").claim("badge")).await.unwrap().is_repeated);
    assert_eq!(log.version("a").await.unwrap(), 1);
}

// Guarantee: event_sourcing 4.
#[tokio::test(start_paused = true)]
async fn commits_of_a_shared_request_with_a_lost_reply_each_take_effect_once() {
    for treat in [Treat::Loses, Treat::Keeps] {
        for (losses, used) in [(1, false), (2, false), (3, false), (1, true)] {
            let (unsteady, store) = unsteady();
            let log = log(&store).await;
            log.commit(append("used", "s0", Any, "A")).await.unwrap();
            // The first one goes alone, and the others meet behind it.
            unsteady.treat([Treat::Passes]);
            unsteady.treat(std::iter::repeat_n(treat, losses));
            let ids = (0..9).map(|n| if used && n == 1 { "used".to_owned() } else { n.to_string() });
            let commits = ids.map(|id| {
                let stream = if id == "used" { "s0".to_owned() } else { format!("s{}", id.len() % 3) };
                append(&id, &stream, Any, "A").claim(format!("of {id}"))
            });
            let all = join_all(commits.map(|commit| log.commit(commit))).await;
            assert!(unsteady.most_ids() > 1 || used, "no request with several commits was lost");
            let is_new = |done: &&Committed| !done.is_repeated;
            let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
            let mut numbers: Vec<_> = all.iter().filter(is_new).map(|done| done.token.number()).collect();
            numbers.sort_unstable();
            assert_eq!(numbers, (2..2 + numbers.len() as u64).collect::<Vec<_>>());
            assert_eq!(numbers.len(), 9 - usize::from(used));
            assert_eq!(unsteady.apply_kept().await, 0);
            assert_eq!(log.token().await.unwrap().number(), numbers.len() as u64 + 1);
        }
    }
}

// Guarantee: event_sourcing 4.
#[tokio::test(start_paused = true)]
async fn a_request_whose_replies_are_always_lost_is_given_up_and_holds_up_nobody_for_ever() {
    let (unsteady, store) = unsteady();
    let log = log(&store).await;
    unsteady.treat(std::iter::repeat_n(Treat::Keeps, 10_000));
    let (clock, begun) = (Clock::tokio(), Clock::tokio().now());
    let error = log.commit(append("cmd", "a", Any, "A")).await.unwrap_err();
    assert!(!error.may_have_been_applied() && error.to_string().contains("nothing was applied"), "{error}");
    assert!(clock.now() - begun < Duration::from_secs(30));
    unsteady.treat_well();
    assert_eq!(unsteady.apply_kept().await, 0);
    assert!(!log.commit(append("cmd", "a", Any, "A")).await.unwrap().is_repeated);
}

// Guarantee: event_sourcing 4.
// They depend on each other, and are sent one by one.
#[tokio::test(start_paused = true)]
async fn commits_that_came_together_have_one_time_limit_if_all_replies_are_lost() {
    for (treat, expects) in [(Treat::Keeps, false), (Treat::Keeps, true), (Treat::Hangs, false), (Treat::Hangs, true)] {
        let (unsteady, store) = unsteady();
        let log = log(&store).await;
        unsteady.treat(std::iter::repeat_n(treat, 10_000));
        let (clock, begun) = (Clock::tokio(), Clock::tokio().now());
        let commit = |n: u64| append(&n.to_string(), "a", if expects { Version(n) } else { Any }, "A");
        let all = join_all((0..64).map(|n| log.commit(commit(n)))).await;
        for error in all.into_iter().map(Result::unwrap_err) {
            assert!(!error.may_have_been_applied() && error.to_string().contains("nothing was applied"), "{error}");
        }
        // The first one is alone, and the others fill two requests.
        let waited = clock.now() - begun;
        assert!(waited < Duration::from_secs(50), "{treat:?}, {expects}: {waited:?}");
        unsteady.treat_well();
        assert_eq!(unsteady.apply_kept().await, 0);
        for n in 0..64 {
            assert!(!log.commit(commit(n)).await.unwrap().is_repeated);
        }
    }
}

// Guarantee: event_sourcing 4.
#[tokio::test(start_paused = true)]
async fn a_store_that_stays_away_leaves_an_error_that_says_so_and_the_id_tells_later() {
    let (unsteady, store) = unsteady();
    let log = log(&store).await;
    unsteady.treat([Treat::Loses]);
    let (clock, begun) = (Clock::tokio(), Clock::tokio().now());
    let commits = log.commit(append("cmd", "a", Any, "A"));
    let goes = async {
        // Behind the batch.
        while log.state().pending == 0 || unsteady.batches.load(std::sync::atomic::Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        *unsteady.is_away.lock().unwrap() = true;
    };
    let (done, ()) = futures::join!(commits, goes);
    let error = done.unwrap_err();
    assert!(error.may_have_been_applied(), "{error}");
    let waited = clock.now() - begun;
    assert!(waited >= Duration::from_secs(14) && waited < Duration::from_secs(17), "{waited:?}");

    // Nothing is sent while it is away.
    let error = log.commit(append("other", "b", Any, "B")).await.unwrap_err();
    assert_eq!(error.backend().map(|error| error.kind()), Some(PortErrorKind::Unavailable));
    *unsteady.is_away.lock().unwrap() = false;
    assert!(log.commit(append("cmd", "a", Any, "A")).await.unwrap().is_repeated);
    assert!(!log.commit(append("other", "b", Any, "B")).await.unwrap().is_repeated);
    assert_eq!((log.version("a").await.unwrap(), log.version("b").await.unwrap()), (1, 1));
}
