//! The contract of every [`Lease`].
use std::time::Duration;

use super::{Fixture, HOUR, NOON, case::suite, fixture::stretched, later, noise};
use crate::{
    lease::{Acquired, Held, Lease, LeaseError},
    port::{Failure, FencingToken, PortErrorKind},
    race::{race, yield_now},
};

mod terms;

pub use terms::*;

suite! {
    $
    /// Defines one named test for each case of the lease's contract.
    lease_conformance;
    /// Returns the cases of the lease's contract.
    lease::cases -> dyn Lease;
    a_free_name_is_granted,
    a_held_name_is_not_granted_to_another,
    names_are_apart,
    a_term_that_is_over_is_granted_to_another_and_not_before,
    a_renewed_term_lasts,
    renewing_never_revives,
    a_holder_that_asks_again_is_granted_a_new_token,
    releasing_frees_at_once_and_an_old_token_changes_nothing,
    tokens_grow,
    a_release_request_reaches_the_holder_of_that_grant,
    of_many_candidates_one_is_granted,
    invalid_arguments_are_refused,
    any_text_is_a_holder,
    a_renewal_sets_the_term,
    the_longest_term_does_not_end,
    an_ended_grant_is_not_released,
    a_release_request_stays_until_its_grant_ends,
    a_release_request_for_another_grant_changes_nothing,
    a_dropped_request_leaves_the_name_usable,
    a_term_follows_no_wall_clock,
    what_was_accepted_outlives_a_restart,
    tokens_grow_over_a_restart,
}

fn a_term() -> Duration {
    stretched(Duration::from_millis(400))
}

fn ok<T>(result: Result<T, LeaseError>) -> T {
    result.unwrap_or_else(|error| panic!("the backend failed: {error}"))
}

async fn grant(lease: &dyn Lease, name: &str, holder: &str) -> FencingToken {
    match ok(lease.acquire(name, holder, a_term()).await) {
        Acquired::Granted(token) => token,
        Acquired::Held(held) => panic!("{name} is free, and not {held:?}"),
    }
}

async fn held(lease: &dyn Lease, name: &str, holder: &str) -> Held {
    match ok(lease.acquire(name, holder, a_term()).await) {
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
    let read = ok(fixture.other().read("n").await).unwrap_or_else(|| panic!("the lease must be held"));
    assert_eq!((read.holder.as_str(), read.token, read.term), ("a", token, a_term()));
}

// Guarantee: lease 1.
/// During a term no other holder is granted the name, through either handle.
pub async fn a_held_name_is_not_granted_to_another(fixture: &Fixture<dyn Lease>) {
    let token = grant(fixture.port(), "n", "a").await;
    for handle in [fixture.port(), fixture.other()] {
        let held = held(handle, "n", "b").await;
        assert_eq!((held.holder.as_str(), held.token), ("a", token));
        assert!(held.free_in <= a_term());
    }
}

/// Names are independent.
pub async fn names_are_apart(fixture: &Fixture<dyn Lease>) {
    let names = ["n", "n ", "N", "n/1", "n:1", "日本", "'; --", "x y\nz", "\u{0}"];
    let mut tokens = Vec::new();
    for name in names {
        // A holder of its own, since a holder that asks again is granted.
        tokens.push((name, grant(fixture.port(), name, &format!("holder of {name}")).await));
    }
    for (name, token) in tokens {
        let held = held(fixture.other(), name, "b").await;
        assert_eq!((held.holder, held.token), (format!("holder of {name}"), token));
    }
}

// Guarantee: lease 1.
/// A challenger is granted the name once the term has passed, by its own clock or the backend's,
/// and not before.
pub async fn a_term_that_is_over_is_granted_to_another_and_not_before(fixture: &Fixture<dyn Lease>) {
    let first = grant(fixture.port(), "n", "a").await;
    held(fixture.other(), "n", "b").await;
    fixture.pass(a_term() * 3 / 4).await;
    held(fixture.other(), "n", "b").await;
    fixture.pass(a_term() / 2).await;
    assert!(grant(fixture.other(), "n", "b").await > first);
    assert_eq!(held(fixture.port(), "n", "a").await.holder, "b");
}

// Guarantee: lease 2.
/// A term that is renewed in time stays with its holder, under the same token.
pub async fn a_renewed_term_lasts(fixture: &Fixture<dyn Lease>) {
    let token = grant(fixture.port(), "n", "a").await;
    for _ in 0..5 {
        fixture.pass(a_term() / 2).await;
        assert!(!ok(fixture.port().renew("n", "a", token, a_term()).await).release_requested);
        assert_eq!(held(fixture.other(), "n", "b").await.token, token);
    }
}

// Guarantee: lease 4.
/// An expired term is not renewed, with or without a later grant.
pub async fn renewing_never_revives(fixture: &Fixture<dyn Lease>) {
    let token = grant(fixture.port(), "n", "a").await;
    held(fixture.other(), "n", "b").await;
    fixture.pass(a_term() * 5 / 4).await;
    not_held(fixture.port().renew("n", "a", token, a_term()).await);
    let next = grant(fixture.other(), "n", "b").await;
    not_held(fixture.port().renew("n", "a", token, a_term()).await);
    not_held(fixture.port().renew("n", "a", next, a_term()).await);
    ok(fixture.other().renew("n", "b", next, a_term()).await);
    not_held(fixture.port().renew("never granted", "a", token, a_term()).await);
}

// Guarantee: lease 3.
/// A holder that acquires again does not wait for its own term; its former token is invalid.
pub async fn a_holder_that_asks_again_is_granted_a_new_token(fixture: &Fixture<dyn Lease>) {
    let first = grant(fixture.port(), "n", "a").await;
    let second = grant(fixture.port(), "n", "a").await;
    assert!(second > first);
    not_held(fixture.port().renew("n", "a", first, a_term()).await);
    not_held(fixture.port().release("n", "a", first).await);
    ok(fixture.port().renew("n", "a", second, a_term()).await);
    // A restarted process with the same id has another handle.
    assert!(grant(fixture.other(), "n", "a").await > second);
    not_held(fixture.port().renew("n", "a", second, a_term()).await);
}

// Guarantee: lease 5.
/// A released name is free at once; an old token, or another holder's, changes nothing.
pub async fn releasing_frees_at_once_and_an_old_token_changes_nothing(fixture: &Fixture<dyn Lease>) {
    let first = grant(fixture.port(), "n", "a").await;
    not_held(fixture.other().release("n", "b", first).await);
    ok(fixture.port().release("n", "a", first).await);
    assert_eq!(ok(fixture.other().read("n").await), None);
    not_held(fixture.port().renew("n", "a", first, a_term()).await);
    let second = grant(fixture.other(), "n", "b").await;
    not_held(fixture.port().release("n", "a", first).await);
    not_held(fixture.port().release("n", "a", second).await);
    assert_eq!(held(fixture.port(), "n", "a").await.token, second);
}

// Guarantee: lease 2.
/// Tokens grow over grants, releases, expired terms and handles.
pub async fn tokens_grow(fixture: &Fixture<dyn Lease>) {
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let token = grant(fixture.port(), "n", "a").await;
        ok(fixture.port().renew("n", "a", token, a_term()).await);
        ok(fixture.port().release("n", "a", token).await);
        tokens.push(token);
        tokens.push(grant(fixture.other(), "n", "b").await);
        held(fixture.port(), "n", "a").await;
        fixture.pass(a_term() * 5 / 4).await;
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

/// Holders are any text, and are told apart.
pub async fn any_text_is_a_holder(fixture: &Fixture<dyn Lease>) {
    let holders = ["a", "A", "a ", "a\nb", "a\n", "1", "a:b", "日本", "'; --", "\u{0}"];
    for (i, holder) in holders.into_iter().enumerate() {
        let (name, next) = (format!("n{i}"), holders[(i + 1) % holders.len()]);
        grant(fixture.port(), &name, holder).await;
        assert_eq!(held(fixture.other(), &name, next).await.holder, holder);
        let read = ok(fixture.other().read(&name).await);
        assert_eq!(read.map(|held| held.holder).as_deref(), Some(holder));
    }
}

// Guarantee: lease 6.
/// The next renewal reports the request, to the holder of that grant and to no later one.
pub async fn a_release_request_reaches_the_holder_of_that_grant(fixture: &Fixture<dyn Lease>) {
    let first = grant(fixture.port(), "n", "a").await;
    ok(fixture.other().request_release("n", first).await);
    assert!(ok(fixture.port().renew("n", "a", first, a_term()).await).release_requested);
    assert_eq!(held(fixture.other(), "n", "b").await.holder, "a", "it forces nothing");
    ok(fixture.port().release("n", "a", first).await);
    let second = grant(fixture.other(), "n", "b").await;
    ok(fixture.port().request_release("n", first).await);
    assert!(!ok(fixture.other().renew("n", "b", second, a_term()).await).release_requested);
}

// Guarantee: lease 1.
/// Of concurrent candidates, through both handles, exactly one is granted the name.
pub async fn of_many_candidates_one_is_granted(fixture: &Fixture<dyn Lease>) {
    for round in 0..5 {
        let tasks: Vec<_> = (0..16)
            .map(|i: usize| {
                let handle = if i.is_multiple_of(2) { fixture.shared() } else { fixture.shared_other() };
                tokio::spawn(
                    async move { handle.acquire(&format!("n{round}"), &format!("c{i}"), a_term() * 100).await },
                )
            })
            .collect();
        let mut granted = 0;
        for task in tasks {
            match task.await.unwrap_or_else(|e| panic!("a candidate: {e}")) {
                Ok(Acquired::Granted(_)) => granted += 1,
                Ok(Acquired::Held(_)) => {}
                // A backend may report that the holder is just changing.
                Err(error) => assert_eq!(error.class(), crate::port::ErrorClass::Throttled, "{error}"),
            }
        }
        assert_eq!(granted, 1);
    }
}

// Guarantee: lease 8.
/// An empty name or holder, one that is too long and a zero term are refused with the name of the
/// argument, by each method that takes it.
pub async fn invalid_arguments_are_refused(fixture: &Fixture<dyn Lease>) {
    fn refused<T: std::fmt::Debug>(result: Result<T, LeaseError>, field: &str) {
        let Err(LeaseError::Failed(error)) = result else { panic!("an invalid `{field}` was accepted: {result:?}") };
        assert_eq!(error.kind(), PortErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(field), "{error}");
    }
    let lease = fixture.port();
    let token = grant(lease, "n", "a").await;
    let longest = lease.capabilities().max_key();
    let mut invalid = vec![(String::new(), "a".to_owned(), "name"), ("n".to_owned(), String::new(), "holder")];
    if longest < 1 << 20 {
        invalid.push(("x".repeat(longest + 1), "a".to_owned(), "name"));
        invalid.push(("n".to_owned(), "x".repeat(longest + 1), "holder"));
        grant(lease, &noise(longest), &noise(longest)).await;
    }
    for (name, holder, field) in &invalid {
        refused(lease.acquire(name, holder, a_term()).await, field);
        refused(lease.renew(name, holder, token, a_term()).await, field);
        refused(lease.release(name, holder, token).await, field);
        if *field == "name" {
            refused(lease.read(name).await, field);
            refused(lease.request_release(name, token).await, field);
        }
    }
    refused(lease.acquire("n", "a", Duration::ZERO).await, "term");
    refused(lease.renew("n", "a", token, Duration::ZERO).await, "term");
    ok(lease.renew("n", "a", token, a_term()).await);
}
