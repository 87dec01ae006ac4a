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
    // The document of discovery, and the key set, take a second each.
    for (mood, least) in [(ProviderMood::Serves, 3), (ProviderMood::Hangs, 2)] {
        world.a.is(mood);
        world.slow(S(1));
        let (before, calls) = (world.a.fetches(), std::cell::Cell::new(0));
        let polls = drop_at_every_await(
            &world.time,
            || {
                // The fetch of the call before goes on without it, and its keys are too old by now.
                assert!(world.run_spawned() <= 1);
                world.time.advance(S(3600));
                calls.set(calls.get() + 1);
                world.verifier.verify::<Value>(&token)
            },
            |_| {},
        );
        assert!(polls >= least, "{mood:?}: {polls} polls");
        world.run_spawned();
        let fetches = world.a.fetches() - before;
        assert!(fetches + 1 >= calls.get() && fetches <= calls.get(), "{mood:?}: {fetches} of {calls:?} calls");
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
fn a_function_that_panics_ends_the_call_that_polls_it_and_no_other() {
    let (clock, time) = Clock::manual();
    let timer = clock.clone();
    let fetch = move |_: String| {
        let timer = timer.clone();
        async move {
            timer.sleep(S(1)).await;
            if true { panic!("on purpose") } else { Ok::<Vec<u8>, String>(vec![]) }
        }
    };
    let config = TokenVerifierConfig::default().issuer(issuer(A));
    let verifier = TokenVerifier::builder(fetch, config).clock(&clock).build().unwrap();
    let token = steadfast::testing::IdentityProvider::new(A).token(&claims(A));
    let call = || time.block_on(verifier.verify::<Value>(&token));
    let mut other = Box::pin(verifier.verify::<Value>(&token));
    {
        let mut first = Box::pin(verifier.verify::<Value>(&token));
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(time.run_blocking(|| first.as_mut().poll(&mut cx)).is_pending(), "it polls the fetch");
        assert!(time.run_blocking(|| other.as_mut().poll(&mut cx)).is_pending(), "it waits for the first");
        assert!(catch_unwind(AssertUnwindSafe(|| time.block_on(first))).is_err());
    }
    assert_eq!(time.block_on(other).unwrap_err().reason(), TokenReason::Unavailable);
    assert_eq!(call().unwrap_err().reason(), TokenReason::Unavailable, "within the cool-down");
}
