//! Lengths of terms, requests to release, restarts.
use super::*;

// Guarantee: lease 4.
/// A renewal sets the term: a longer one prolongs the grant, a shorter one ends it earlier.
pub async fn a_renewal_sets_the_term(fixture: &Fixture<dyn Lease>) {
    let (here, there) = (fixture.port(), fixture.other());
    let longer = grant(here, "longer", "a").await;
    let shorter = match ok(here.acquire("shorter", "a", a_term() * 10).await) {
        Acquired::Granted(token) => token,
        Acquired::Held(held) => panic!("the name is free, and not {held:?}"),
    };
    ok(here.renew("longer", "a", longer, a_term() * 3).await);
    ok(here.renew("shorter", "a", shorter, a_term()).await);
    for (name, term) in [("longer", a_term() * 3), ("shorter", a_term())] {
        let held = held(there, name, "b").await;
        assert_eq!(held.term, term, "{name}");
        assert!(held.free_in <= term, "{name}: {held:?}");
    }
    fixture.pass(a_term() * 5 / 4).await;
    assert!(grant(there, "shorter", "b").await > shorter);
    not_held(here.renew("shorter", "a", shorter, a_term()).await);
    assert_eq!(held(there, "longer", "b").await.token, longer);
    // Not added to the time that is left.
    ok(here.renew("longer", "a", longer, a_term()).await);
    held(there, "longer", "b").await;
    fixture.pass(a_term() * 5 / 4).await;
    assert!(grant(there, "longer", "b").await > longer);
}

// Guarantee: lease 1.
/// A long term is not shortened, and the longest does not overflow.
pub async fn the_longest_term_does_not_end(fixture: &Fixture<dyn Lease>) {
    for (name, term) in [("n", HOUR * 24 * 365), ("longest", Duration::MAX)] {
        let granted = ok(fixture.port().acquire(name, "a", term).await);
        let Acquired::Granted(token) = granted else { panic!("the name is free, and not {granted:?}") };
        held(fixture.other(), name, "b").await;
        let long = if fixture.is_on_manual_time() { HOUR * 24 * 364 } else { a_term() / 4 };
        fixture.pass(long).await;
        held(fixture.other(), name, "b").await;
        ok(fixture.port().renew(name, "a", token, term).await);
        held(fixture.other(), name, "b").await;
        fixture.pass(long).await;
        assert_eq!(held(fixture.other(), name, "b").await.token, token);
        ok(fixture.port().release(name, "a", token).await);
    }
}

// Guarantee: lease 5.
/// Releasing a grant whose term is over returns `NotHeld`, before and after a later grant, which it
/// leaves as it is.
pub async fn an_ended_grant_is_not_released(fixture: &Fixture<dyn Lease>) {
    let token = grant(fixture.port(), "n", "a").await;
    held(fixture.other(), "n", "b").await;
    fixture.pass(a_term() * 5 / 4).await;
    not_held(fixture.port().release("n", "a", token).await);
    let next = grant(fixture.other(), "n", "b").await;
    assert!(next > token);
    not_held(fixture.port().release("n", "a", token).await);
    assert_eq!(held(fixture.port(), "n", "a").await.token, next);
    ok(fixture.other().release("n", "b", next).await);
    not_held(fixture.other().release("n", "b", next).await);
    not_held(fixture.port().release("never granted", "a", token).await);
}

// Guarantee: lease 6.
/// Each renewal of the grant reports the request from then on, since the reply that reports it
/// first may be lost.
pub async fn a_release_request_stays_until_its_grant_ends(fixture: &Fixture<dyn Lease>) {
    let first = grant(fixture.port(), "n", "a").await;
    assert!(!ok(fixture.port().renew("n", "a", first, a_term()).await).release_requested);
    ok(fixture.other().request_release("n", first).await);
    for _ in 0..3 {
        assert!(ok(fixture.port().renew("n", "a", first, a_term()).await).release_requested);
    }
    // The same holder's next grant is another one.
    let second = grant(fixture.port(), "n", "a").await;
    assert!(!ok(fixture.port().renew("n", "a", second, a_term()).await).release_requested);
}

// Guarantee: lease 6.
/// A request for an earlier grant, for another name, or for a free name is accepted and has no
/// effect; it does not take the place of the current grant's.
pub async fn a_release_request_for_another_grant_changes_nothing(fixture: &Fixture<dyn Lease>) {
    let (here, there) = (fixture.port(), fixture.other());
    let first = grant(here, "n", "a").await;
    ok(here.release("n", "a", first).await);
    ok(there.request_release("n", first).await);
    let second = grant(here, "n", "a").await;
    for (name, token) in [("m", second), ("n", first)] {
        ok(there.request_release(name, token).await);
    }
    assert!(!ok(here.renew("n", "a", second, a_term()).await).release_requested);
    ok(there.request_release("n", second).await);
    ok(there.request_release("n", first).await);
    assert!(ok(here.renew("n", "a", second, a_term()).await).release_requested, "a later request for an earlier grant");
    // A token of another name may be above those of a free name, and equal to a later one.
    let mut of_n = second;
    for _ in 0..3 {
        of_n = grant(here, "n", "a").await;
    }
    for name in ["free", "later"] {
        ok(there.request_release(name, of_n).await);
    }
    let token = grant(here, "free", "a").await;
    ok(there.request_release("free", token).await);
    assert!(ok(here.renew("free", "a", token, a_term()).await).release_requested, "after a request while it was free");
    for _ in 0..10 {
        let token = grant(here, "later", "a").await;
        assert!(!ok(here.renew("later", "a", token, a_term()).await).release_requested, "before it was granted");
    }
}

// Guarantee: lease 3, 7.
/// Dropped requests lock nothing: their holder asks again and is granted the name.
pub async fn a_dropped_request_leaves_the_name_usable(fixture: &Fixture<dyn Lease>) {
    for polls in 0..10 {
        let after_some_polls = || async {
            for _ in 0..polls {
                yield_now().await;
            }
        };
        let _ = race(fixture.port().acquire("n", "a", a_term()), after_some_polls()).await;
        // A request that still arrives is the faster one of two.
        let mut granted = None;
        for _ in 0..20 {
            match fixture.port().acquire("n", "a", a_term()).await {
                Ok(Acquired::Granted(token)) => granted = Some(token),
                Ok(Acquired::Held(held)) => panic!("its own name is held: {held:?}"),
                Err(error) => assert_eq!(error.class(), crate::port::ErrorClass::Throttled, "{error}"),
            }
            if granted.is_some() {
                break;
            }
            fixture.pass(a_term() / 20).await;
        }
        let token = granted.unwrap_or_else(|| panic!("the name is locked"));
        let _ = race(fixture.port().renew("n", "a", token, a_term()), after_some_polls()).await;
        let _ = race(fixture.port().release("n", "a", token), after_some_polls()).await;
    }
}

// Guarantee: lease 1.
/// A jump of the client's wall clock neither ends nor prolongs a term.
pub async fn a_term_follows_no_wall_clock(fixture: &Fixture<dyn Lease>) {
    if !fixture.set_wall(NOON) {
        return;
    }
    let token = grant(fixture.port(), "n", "a").await;
    held(fixture.other(), "n", "b").await;
    fixture.set_wall(later(NOON, HOUR));
    assert_eq!(held(fixture.other(), "n", "b").await.token, token);
    ok(fixture.port().renew("n", "a", token, a_term()).await);
    held(fixture.other(), "n", "b").await;
    fixture.set_wall(NOON);
    fixture.pass(a_term() * 5 / 4).await;
    not_held(fixture.port().renew("n", "a", token, a_term()).await);
    assert!(grant(fixture.other(), "n", "b").await > token);
}

// Guarantee: lease 9.
/// A grant outlives a restart of the backend for the rest of its term, and for no longer than one
/// more. A release and a grant's end are as final as before.
pub async fn what_was_accepted_outlives_a_restart(fixture: &mut Fixture<dyn Lease>) {
    fixture.assert_can_restart(fixture.port().capabilities());
    if !fixture.can_restart() {
        return;
    }
    let kept = match ok(fixture.port().acquire("kept", "a", a_term() * 50).await) {
        Acquired::Granted(token) => token,
        Acquired::Held(held) => panic!("the name is free, and not {held:?}"),
    };
    let released = grant(fixture.port(), "released", "a").await;
    ok(fixture.port().release("released", "a", released).await);
    let ended = grant(fixture.port(), "ended", "a").await;
    fixture.restart().await;
    let seen = held(fixture.other(), "kept", "b").await;
    assert_eq!((seen.holder.as_str(), seen.token), ("a", kept));
    not_held(fixture.port().renew("released", "a", released, a_term()).await);
    assert!(grant(fixture.other(), "released", "b").await > released);
    // The restart may have taken the whole term.
    let _ = ok(fixture.other().acquire("ended", "b", a_term()).await);
    fixture.pass(a_term() * 5 / 4).await;
    assert!(grant(fixture.other(), "ended", "b").await > ended);
    assert_eq!(held(fixture.other(), "kept", "b").await.token, kept);
    assert!(grant(fixture.port(), "kept", "a").await > kept, "the holder itself is granted at once");
    not_held(fixture.port().release("kept", "a", kept).await);
}

// Guarantee: lease 2.
/// Tokens after a restart are above all earlier ones, also of names that were free meanwhile.
pub async fn tokens_grow_over_a_restart(fixture: &mut Fixture<dyn Lease>) {
    if !fixture.can_restart() {
        return;
    }
    let mut tokens = Vec::new();
    for _ in 0..3 {
        for _ in 0..2 {
            let token = grant(fixture.port(), "n", "a").await;
            ok(fixture.port().release("n", "a", token).await);
            tokens.push(token);
        }
        fixture.restart().await;
    }
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}
