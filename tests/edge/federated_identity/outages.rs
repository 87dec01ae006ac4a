//! Floods of unknown keys, and issuers that are away.
use serde_json::json;
use steadfast::{
    testing::{IdentityProvider, ProviderMood},
    token::{Algorithm, TokenReason},
};

use super::world::{A, B, S, World, claims};

// Guarantee: federated_identity 3, 5.
#[test]
fn ten_thousand_unknown_keys_in_a_minute_cause_at_most_three_fetches() {
    let moods = [
        ProviderMood::Serves,
        ProviderMood::Fails,
        ProviderMood::Hangs,
        ProviderMood::Empty,
        ProviderMood::Lies,
        ProviderMood::Garbage,
        ProviderMood::Huge,
    ];
    // Also before the first keys were there.
    for (mood, is_cold) in moods.into_iter().flat_map(|mood| [(mood, false), (mood, true)]) {
        let world = World::new();
        let (of_a, of_b) = (world.a.token(&claims(A)), world.b.token(&claims(B)));
        world.verify(&of_b).unwrap();
        if !is_cold {
            world.verify(&of_a).unwrap();
            world.time.advance(S(60));
        }
        let before = world.a.fetches();
        world.a.is(mood);
        let start = world.clock.now();
        let flood: Vec<_> = (0..10_000)
            .map(|n| {
                let token = world.a.sign(&json!({ "alg": "ES256", "kid": format!("kid {n}") }), &claims(A));
                let (world, clock) = (&world, world.clock.clone());
                async move {
                    clock.sleep(S(60) / 10_000 * n).await;
                    let refused = world.verifier.verify::<serde_json::Value>(&token).await.unwrap_err();
                    let is_known = mood == ProviderMood::Serves;
                    let expected = if is_known { TokenReason::Key } else { TokenReason::Unavailable };
                    assert_eq!(refused.reason(), expected, "{mood:?} {is_cold}");
                }
            })
            .collect();
        let others = async {
            for _ in 0..600 {
                world.clock.sleep(S(60) / 600).await;
                let now = world.clock.now();
                world.verifier.verify::<serde_json::Value>(&of_b).await.expect("another tenant");
                if !is_cold {
                    world.verifier.verify::<serde_json::Value>(&of_a).await.expect("a known key");
                }
                assert_eq!(world.clock.now(), now, "it has waited: {mood:?} {is_cold}");
            }
        };
        world.time.block_on(async { futures::join!(futures::future::join_all(flood), others) });
        let took = world.clock.now() - start;
        assert!(took <= S(66), "{mood:?} {is_cold}: {took:?}");
        let fetches = world.a.fetches() - before;
        assert!((1..=3).contains(&fetches), "{mood:?} {is_cold}: {fetches} fetches");
        assert_eq!(world.b.fetches(), 1);
    }
}

// Guarantee: federated_identity 3.
#[test]
fn a_new_key_is_accepted_during_a_flood_after_one_cool_down() {
    let world = World::new();
    world.verify(&world.a.token(&claims(A))).unwrap();
    world.time.advance(S(60));
    let unknown = world.a.sign(&json!({ "alg": "ES256", "kid": "?" }), &claims(A));
    assert_eq!(world.reason(&unknown), TokenReason::Key);
    world.a.rotate();
    let new = world.a.token(&claims(A));
    for _ in 0..29 {
        world.time.advance(S(1));
        assert_eq!(world.reason(&unknown), TokenReason::Key);
        assert_eq!(world.reason(&new), TokenReason::Key);
    }
    world.time.advance(S(1));
    world.verify(&new).unwrap();
    assert_eq!(world.a.fetches(), 3);
}

// Guarantee: federated_identity 3.
#[test]
fn the_cool_down_counts_from_the_start_of_an_attempt_that_hangs() {
    let world = World::new();
    world.a.is(ProviderMood::Hangs);
    let token = world.a.token(&claims(A));
    let refused = world.verify(&token).unwrap_err();
    assert_eq!(refused.reason(), TokenReason::Unavailable);
    assert_eq!(refused.retry_after(), Some(S(25)), "30 s from its start, which was 5 s ago");
    let answer = steadfast::http::token_answer::<String>(&refused);
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (503, &"25".parse().unwrap()));
    world.a.is(ProviderMood::Serves);
    world.time.advance(S(24));
    assert_eq!(world.reason(&token), TokenReason::Unavailable);
    world.time.advance(S(1));
    world.verify(&token).unwrap();
    assert_eq!(world.a.fetches(), 2);
}

// Guarantee: federated_identity 4.
#[test]
fn neither_a_wrong_signature_nor_an_unknown_issuer_causes_a_fetch() {
    let world = World::new();
    let token = world.a.token(&claims(A));
    world.verify(&token).unwrap();
    let (signed, _) = token.rsplit_once('.').unwrap();
    let forged = format!("{signed}.{}", crate::base64([7; 64]));
    for n in 0..1000 {
        world.time.advance(S(1) / 4);
        assert_eq!(world.reason(&forged), TokenReason::Signature);
        let unknown = world.a.token(&claims(&format!("https://{n}.example")));
        assert_eq!(world.reason(&unknown), TokenReason::Issuer);
    }
    assert_eq!((world.a.fetches(), world.b.fetches()), (1, 0));
}

// Guarantee: federated_identity 5.
#[test]
fn keys_serve_until_they_are_too_old_while_their_issuer_is_away_and_others_do_not_notice() {
    let world = World::new();
    let (of_a, of_b) = (world.a.token(&claims(A)), world.b.token(&claims(B)));
    world.verify(&of_a).unwrap();
    world.a.is(ProviderMood::Hangs);
    let fetched = world.clock.now();
    while world.clock.now() - fetched < S(3540) {
        world.time.advance(S(10));
        world.verify(&of_a).expect("younger than an hour");
        world.run_spawned();
    }
    world.time.advance_to(fetched + S(3600));
    let refused = world.verify(&of_a).unwrap_err();
    assert_eq!(refused.reason(), TokenReason::Unavailable);
    assert!(refused.retry_after().is_some_and(|wait| wait <= S(30)), "{refused:?}");
    let now = world.clock.now();
    world.verify(&of_b).unwrap();
    assert_eq!(world.clock.now(), now);
    world.a.is(ProviderMood::Serves);
    world.time.advance(S(30));
    world.verify(&of_a).expect("the issuer is back");
}

/// Regression: valid tokens of a new key were told to be invalid while their issuer could not be asked.
// Guarantee: federated_identity 5.
#[test]
fn a_token_under_an_unknown_key_is_unavailable_while_the_last_fetch_failed() {
    let world = World::new();
    let old = world.a.token(&claims(A));
    world.verify(&old).unwrap();
    world.time.advance(S(30));
    world.a.rotate();
    let new = world.a.token(&claims(A));
    for mood in [ProviderMood::Fails, ProviderMood::Empty, ProviderMood::Hangs] {
        world.a.is(mood);
        let refused = world.verify(&new).unwrap_err();
        assert_eq!(refused.reason(), TokenReason::Unavailable, "{mood:?}");
        assert!(refused.retry_after().is_some_and(|wait| wait >= S(25)), "{refused:?}");
        assert_eq!(world.reason(&new), TokenReason::Unavailable, "{mood:?}: without a fetch");
        world.verify(&old).expect("a known key");
        world.time.advance(S(30));
    }
    world.a.is(ProviderMood::Serves);
    world.verify(&new).unwrap();
    let unknown = world.a.sign(&json!({ "alg": "ES256", "kid": "?" }), &claims(A));
    assert_eq!(world.reason(&unknown), TokenReason::Key, "the issuer was asked, and has no such key");
}

/// The same without an id, where the only key is a guess.
#[test]
fn without_an_id_a_wrong_signature_proves_nothing_while_the_last_fetch_failed() {
    let world = World::new();
    let of = |provider: &IdentityProvider| provider.sign(&json!({ "alg": "ES256" }), &claims(A));
    let old = of(&world.a);
    world.verify(&old).unwrap();
    world.a.withdraw("key-1");
    world.a.rotate();
    assert_eq!(world.reason(&of(&world.a)), TokenReason::Signature, "the keys are of this moment");
    world.time.advance(S(30));
    world.a.is(ProviderMood::Fails);
    assert_eq!(world.reason(&of(&world.a)), TokenReason::Unavailable);
    world.verify(&old).expect("the key that is known");
    world.time.advance(S(30));
    world.a.is(ProviderMood::Serves);
    world.verify(&of(&world.a)).unwrap();
    assert_eq!(world.reason(&of(&IdentityProvider::new(A))), TokenReason::Signature);
}

#[test]
fn callers_on_many_threads_share_one_fetch() {
    for _ in 0..50 {
        let world = World::new();
        let token = world.a.token(&claims(A));
        let unknown = world.a.sign(&json!({ "alg": "ES256", "kid": "?" }), &claims(A));
        let barrier = std::sync::Barrier::new(8);
        std::thread::scope(|scope| {
            for n in 0..8 {
                let (verifier, barrier) = (world.verifier.clone(), &barrier);
                let token = if n % 2 == 0 { &token } else { &unknown };
                scope.spawn(move || {
                    barrier.wait();
                    let run = verifier.verify::<serde_json::Value>(token);
                    let verified = steadfast::time::block_on(run).map(drop).map_err(|refused| refused.reason());
                    assert_eq!(verified, if n % 2 == 0 { Ok(()) } else { Err(TokenReason::Key) });
                });
            }
        });
        assert_eq!(world.a.fetches(), 1);
    }
}

#[test]
fn callers_at_once_share_one_fetch() {
    let world = World::new();
    world.a.rotate_to(Algorithm::EdDsa);
    let token = world.a.token(&claims(A));
    let calls = (0..1000).map(|_| world.verifier.verify::<serde_json::Value>(&token));
    let all = world.time.block_on(futures::future::join_all(calls));
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(world.a.fetches(), 1);
}

/// Regression: a call waited without limit for a fetch that another task had begun, and did not poll.
// Guarantee: federated_identity 5.
#[test]
fn no_call_waits_longer_than_a_fetch_may_take_whoever_drives_it() {
    let world = World::new();
    let token = world.a.token(&claims(A));
    world.verify(&token).unwrap();
    world.time.advance(S(480));
    world.verify(&token).unwrap();
    assert_eq!(world.spawned.lock().unwrap().len(), 1, "begun in the background, and never polled");
    let start = world.clock.now();
    world.a.rotate();
    world.verify(&world.a.token(&claims(A))).expect("it polls the fetch by itself");
    assert!(world.clock.now() - start < S(1));
    // A task that is polled once and then held, while the issuer hangs.
    world.time.advance(S(3600));
    world.a.is(ProviderMood::Hangs);
    let mut held = Box::pin(world.verifier.verify::<serde_json::Value>(&token));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(world.time.run_blocking(|| held.as_mut().poll(&mut cx)).is_pending());
    let start = world.clock.now();
    assert_eq!(world.reason(&token), TokenReason::Unavailable);
    assert_eq!(world.clock.now() - start, S(5));
}
