//! Lost replies: a commit is applied once, or the error says that it may have been applied.
use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use steadfast::{
    event_sourcing::Expected::*,
    port::{Failure, PortErrorKind},
    store::Store,
    time::Clock,
};

use crate::{
    append, log,
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
        let (unsteady, store) = unsteady();
        let log = log(&store).await;
        // The first one goes alone.
        log.commit(append("first", "first", Any, "A")).await.unwrap();
        unsteady.treat([treat, treat]);
        let all = join_all((0..9).map(|n| log.commit(append(&n.to_string(), &format!("s{}", n % 3), Any, "A")))).await;
        let mut numbers: Vec<_> = all.into_iter().map(|done| done.unwrap().token.number()).collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (2..11).collect::<Vec<_>>());
        assert_eq!(unsteady.apply_kept().await, 0);
        assert_eq!(log.token().await.unwrap().number(), 10);
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
        while log.pending() == 0 || unsteady.batches.load(std::sync::atomic::Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        *unsteady.is_away.lock().unwrap() = true;
    };
    let (done, ()) = futures::join!(commits, goes);
    let error = done.unwrap_err();
    assert!(error.may_have_been_applied(), "{error}");
    let waited = clock.now() - begun;
    assert!(waited >= Duration::from_secs(15) && waited < Duration::from_secs(22), "{waited:?}");

    // Nothing is sent while it is away.
    let error = log.commit(append("other", "b", Any, "B")).await.unwrap_err();
    assert_eq!(error.backend().map(|error| error.kind()), Some(PortErrorKind::Unavailable));
    *unsteady.is_away.lock().unwrap() = false;
    assert!(log.commit(append("cmd", "a", Any, "A")).await.unwrap().is_repeated);
    assert!(!log.commit(append("other", "b", Any, "B")).await.unwrap().is_repeated);
    assert_eq!((log.version("a").await.unwrap(), log.version("b").await.unwrap()), (1, 1));
}
