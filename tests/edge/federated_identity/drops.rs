//! Futures that are dropped, and functions that panic.
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde_json::Value;
use steadfast::{
    federated_identity::{TokenVerifier, TokenVerifierConfig},
    testing::{ProviderMood, drop_at_every_await},
    time::Clock,
    token::TokenReason,
};

use super::world::{A, S, World, claims, issuer};

#[test]
fn a_verification_that_is_dropped_at_any_await_leaves_its_fetch_to_the_background() {
    let world = World::new();
    let token = world.a.token(&claims(A));
    for mood in [ProviderMood::Serves, ProviderMood::Hangs] {
        world.a.is(mood);
        world.time.advance(S(3600));
        let before = world.a.fetches();
        let polls = drop_at_every_await(
            &world.time,
            || {
                world.time.advance(S(30));
                world.verifier.verify::<Value>(&token)
            },
            |_| {},
        );
        assert!(polls >= 1);
        world.run_spawned();
        assert!((1..=3).contains(&(world.a.fetches() - before)), "{mood:?}: {}", world.a.fetches() - before);
    }
}

#[test]
fn a_fetch_whose_callers_left_is_finished_and_the_next_caller_finds_the_keys() {
    let world = World::new();
    let token = world.a.token(&claims(A));
    world.a.is(ProviderMood::Hangs);
    {
        let mut call = Box::pin(world.verifier.verify::<Value>(&token));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(world.time.run_blocking(|| call.as_mut().poll(&mut cx)).is_pending());
    }
    assert_eq!(world.spawned.lock().unwrap().len(), 1, "it goes on in the background");
    world.run_spawned();
    world.a.is(ProviderMood::Serves);
    world.time.advance(S(30));
    world.verify(&token).unwrap();
}

#[test]
fn a_function_that_panics_ends_its_call_alone() {
    let (clock, time) = Clock::manual();
    let fetch = |_: String| async { if true { panic!("on purpose") } else { Ok::<Vec<u8>, String>(vec![]) } };
    let config = TokenVerifierConfig::default().issuer(issuer(A));
    let verifier = TokenVerifier::builder(fetch, config).clock(&clock).build().unwrap();
    let token = steadfast::testing::IdentityProvider::new(A).token(&claims(A));
    let call = || time.block_on(verifier.verify::<Value>(&token));
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    assert_eq!(call().unwrap_err().reason(), TokenReason::Unavailable, "within the cool-down");
}
