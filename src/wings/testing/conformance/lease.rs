//! What every [`Lease`] must hold.
use std::time::Duration;

use super::Fixture;
use crate::{
    lease::{Acquired, Held, Lease, LeaseError},
    port::{Failure, FencingToken, PortErrorKind},
};

/// Makes one named test of each case of the lease's contract.
#[macro_export]
macro_rules! lease_conformance {
    ($make:expr) => {
        $crate::conformance_cases!(lease, $make;
            a_free_name_is_granted,
            a_held_name_is_not_granted_to_another,
            names_are_apart,
            a_term_that_is_over_is_granted_to_another_and_not_before,
            a_renewed_term_lasts,
            renewing_never_revives,
            a_holder_that_asks_again_is_granted_a_new_token,
            releasing_frees_at_once_and_an_old_token_changes_nothing,
            tokens_grow,
            a_request_to_release_is_told_to_the_holder_of_that_grant,
            of_many_candidates_one_is_granted,
            what_makes_no_sense_is_refused,
        );
    };
}

const TERM: Duration = Duration::from_millis(400);

fn ok<T>(result: Result<T, LeaseError>) -> T {
    result.unwrap_or_else(|error| panic!("the backend failed: {error}"))
}

async fn grant(lease: &dyn Lease, name: &str, holder: &str) -> FencingToken {
    match ok(lease.acquire(name, holder, TERM).await) {
        Acquired::Granted(token) => token,
        Acquired::Held(held) => panic!("{name} is free, and not {held:?}"),
    }
}

async fn held(lease: &dyn Lease, name: &str, holder: &str) -> Held {
    match ok(lease.acquire(name, holder, TERM).await) {
        Acquired::Held(held) => held,
        Acquired::Granted(token) => panic!("{name} is held, and was granted: {token}"),
    }
}

fn not_held<T: std::fmt::Debug>(result: Result<T, LeaseError>) {
    assert!(matches!(result, Err(LeaseError::NotHeld)), "{result:?}");
}

/// A free name is granted, and can be read.
pub async fn a_free_name_is_granted(fixture: &Fixture<dyn Lease>) {
    assert_eq!(ok(fixture.port().read("n").await), None);
    let token = grant(fixture.port(), "n", "a").await;
    let read = ok(fixture.other().read("n").await).unwrap_or_else(|| panic!("it is held"));
    assert_eq!((read.holder.as_str(), read.token, read.term), ("a", token, TERM));
}

/// While a term lasts nobody else is granted the name, at either door.
pub async fn a_held_name_is_not_granted_to_another(fixture: &Fixture<dyn Lease>) {
    let token = grant(fixture.port(), "n", "a").await;
    for door in [fixture.port(), fixture.other()] {
        let held = held(door, "n", "b").await;
        assert_eq!((held.holder.as_str(), held.token), ("a", token));
        assert!(held.free_in <= TERM);
    }
}

/// A name has nothing to do with another.
pub async fn names_are_apart(fixture: &Fixture<dyn Lease>) {
    for name in ["n", "n ", "N", "n/1", "日本", "'; --", "x y\nz"] {
        grant(fixture.port(), name, "a").await;
        assert_eq!(held(fixture.other(), name, "b").await.holder, "a");
    }
}

/// A challenger is granted the name once the term has passed, for it or by the backend's clock; and not before.
pub async fn a_term_that_is_over_is_granted_to_another_and_not_before(fixture: &Fixture<dyn Lease>) {
    let first = grant(fixture.port(), "n", "a").await;
    held(fixture.other(), "n", "b").await;
    fixture.pass(TERM * 3 / 4).await;
    held(fixture.other(), "n", "b").await;
    fixture.pass(TERM / 2).await;
    assert!(grant(fixture.other(), "n", "b").await > first);
    assert_eq!(held(fixture.port(), "n", "a").await.holder, "b");
}

/// Renewed in time, again and again, it stays with its holder, under the same token.
pub async fn a_renewed_term_lasts(fixture: &Fixture<dyn Lease>) {
    let token = grant(fixture.port(), "n", "a").await;
    for _ in 0..5 {
        fixture.pass(TERM / 2).await;
        assert!(!ok(fixture.port().renew("n", "a", token, TERM).await).release_requested);
        assert_eq!(held(fixture.other(), "n", "b").await.token, token);
    }
}

/// A term that is over is not renewed, whether or not another was granted the name.
pub async fn renewing_never_revives(fixture: &Fixture<dyn Lease>) {
    let token = grant(fixture.port(), "n", "a").await;
    held(fixture.other(), "n", "b").await;
    fixture.pass(TERM * 5 / 4).await;
    not_held(fixture.port().renew("n", "a", token, TERM).await);
    let next = grant(fixture.other(), "n", "b").await;
    not_held(fixture.port().renew("n", "a", token, TERM).await);
    not_held(fixture.port().renew("n", "a", next, TERM).await);
    ok(fixture.other().renew("n", "b", next, TERM).await);
    not_held(fixture.port().renew("never granted", "a", token, TERM).await);
}

/// A holder does not wait for itself; the token of before is worth nothing.
pub async fn a_holder_that_asks_again_is_granted_a_new_token(fixture: &Fixture<dyn Lease>) {
    let first = grant(fixture.port(), "n", "a").await;
    let second = grant(fixture.port(), "n", "a").await;
    assert!(second > first);
    not_held(fixture.port().renew("n", "a", first, TERM).await);
    not_held(fixture.port().release("n", "a", first).await);
    ok(fixture.port().renew("n", "a", second, TERM).await);
    // A process that was started anew, under the same id, has another door.
    assert!(grant(fixture.other(), "n", "a").await > second);
    not_held(fixture.port().renew("n", "a", second, TERM).await);
}

/// Released, it is free at once; by an old token, or another's, nothing is changed.
pub async fn releasing_frees_at_once_and_an_old_token_changes_nothing(fixture: &Fixture<dyn Lease>) {
    let first = grant(fixture.port(), "n", "a").await;
    not_held(fixture.other().release("n", "b", first).await);
    ok(fixture.port().release("n", "a", first).await);
    assert_eq!(ok(fixture.other().read("n").await), None);
    not_held(fixture.port().renew("n", "a", first, TERM).await);
    let second = grant(fixture.other(), "n", "b").await;
    not_held(fixture.port().release("n", "a", first).await);
    not_held(fixture.port().release("n", "a", second).await);
    assert_eq!(held(fixture.port(), "n", "a").await.token, second);
}

/// Over grants, releases, terms that passed, and doors.
pub async fn tokens_grow(fixture: &Fixture<dyn Lease>) {
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let token = grant(fixture.port(), "n", "a").await;
        ok(fixture.port().renew("n", "a", token, TERM).await);
        ok(fixture.port().release("n", "a", token).await);
        tokens.push(token);
        tokens.push(grant(fixture.other(), "n", "b").await);
        held(fixture.port(), "n", "a").await;
        fixture.pass(TERM * 5 / 4).await;
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

/// Told by the next renewal, to the holder of that grant and to no later one.
pub async fn a_request_to_release_is_told_to_the_holder_of_that_grant(fixture: &Fixture<dyn Lease>) {
    let first = grant(fixture.port(), "n", "a").await;
    ok(fixture.other().request_release("n", first).await);
    assert!(ok(fixture.port().renew("n", "a", first, TERM).await).release_requested);
    assert_eq!(held(fixture.other(), "n", "b").await.holder, "a", "it forces nothing");
    ok(fixture.port().release("n", "a", first).await);
    let second = grant(fixture.other(), "n", "b").await;
    ok(fixture.port().request_release("n", first).await);
    assert!(!ok(fixture.other().renew("n", "b", second, TERM).await).release_requested);
}

/// Many at once, at both doors: one is granted, again and again.
pub async fn of_many_candidates_one_is_granted(fixture: &Fixture<dyn Lease>) {
    for round in 0..5 {
        let tasks: Vec<_> = (0..16)
            .map(|i: usize| {
                let door = if i.is_multiple_of(2) { fixture.shared() } else { fixture.shared_other() };
                tokio::spawn(async move { door.acquire(&format!("n{round}"), &format!("c{i}"), TERM * 100).await })
            })
            .collect();
        let mut granted = 0;
        for task in tasks {
            match task.await.unwrap_or_else(|e| panic!("a candidate: {e}")) {
                Ok(Acquired::Granted(_)) => granted += 1,
                Ok(Acquired::Held(_)) => {}
                // "The lease is changing its holder" is a valid answer, too.
                Err(error) => assert_eq!(error.class(), crate::port::ErrorClass::Throttled, "{error}"),
            }
        }
        assert_eq!(granted, 1);
    }
}

/// An empty name, an empty holder, no term.
pub async fn what_makes_no_sense_is_refused(fixture: &Fixture<dyn Lease>) {
    for (name, holder, term, field) in
        [("", "a", TERM, "name"), ("n", "", TERM, "holder"), ("n", "a", Duration::ZERO, "term")]
    {
        let Err(LeaseError::Failed(error)) = fixture.port().acquire(name, holder, term).await else {
            panic!("{field} makes no sense")
        };
        assert_eq!(error.kind(), PortErrorKind::Invalid);
        assert!(error.to_string().contains(field), "{error}");
    }
}
