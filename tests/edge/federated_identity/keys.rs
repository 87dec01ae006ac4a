//! Key sets: rotation, removal, and what is left out.
use serde_json::{Value, json};
use steadfast::{
    federated_identity::{FetchFailure, Issuer, TokenVerifier, TokenVerifierConfig, TokenVerifierEvent as Event},
    testing::ProviderMood,
    time::Clock,
    token::{Algorithm, TokenReason},
};

use super::world::{A, B, S, World, claims, issuer, told};

/// Returns a key of a set with these members replaced.
fn edited(key: &Value, edits: Value) -> Value {
    let mut key = key.clone();
    edits.as_object().unwrap().iter().for_each(|(name, value)| key[name] = value.clone());
    key
}

// Guarantee: federated_identity 3, 6.
#[test]
fn the_first_token_of_a_new_key_is_accepted_and_a_removed_key_ends() {
    let world = World::new();
    let old = world.a.token(&claims(A));
    world.verify(&old).unwrap();
    world.time.advance(S(31));
    world.a.rotate();
    let new = world.a.token(&claims(A));
    world.verify(&new).expect("the first token of a new key");
    world.verify(&old).expect("the old key is still published");
    assert_eq!(world.a.fetches(), 2);
    world.a.withdraw("key-1");
    world.time.advance(S(480));
    world.verify(&old).expect("not fetched again yet");
    assert_eq!(world.run_spawned(), 1);
    assert_eq!(world.reason(&old), TokenReason::Key, "the fetched set replaces the old one");
    world.verify(&new).unwrap();
}

// Guarantee: federated_identity 5.
#[test]
fn keys_are_fetched_ahead_of_time_once_and_no_token_waits_for_it() {
    let world = World::new();
    let token = world.a.token(&claims(A));
    world.verify(&token).unwrap();
    world.time.advance(S(479));
    world.verify(&token).unwrap();
    assert!(world.spawned.lock().unwrap().is_empty());
    world.time.advance(S(1));
    world.a.is(ProviderMood::Hangs);
    let start = world.clock.now();
    for _ in 0..100 {
        world.verify(&token).unwrap();
    }
    assert_eq!(world.clock.now(), start, "none has waited");
    assert_eq!(world.spawned.lock().unwrap().len(), 1);
    world.run_spawned();
    assert_eq!((world.a.fetches(), world.clock.now() - start), (2, S(5)), "until the time-out");
}

// Guarantee: federated_identity 6.
#[test]
fn a_set_that_cannot_be_used_is_an_event_and_the_old_one_stays() {
    let world = World::new();
    let token = world.a.token(&claims(A));
    world.verify(&token).unwrap();
    let unknown = world.a.sign(&json!({ "alg": "ES256", "kid": "key-9" }), &claims(A));
    for (mood, expected) in [
        (ProviderMood::Empty, FetchFailure::NoKey),
        (ProviderMood::Huge, FetchFailure::TooLarge),
        (ProviderMood::Garbage, FetchFailure::Unparsable),
        (ProviderMood::Lies, FetchFailure::OtherIssuer),
        (ProviderMood::Hangs, FetchFailure::TimedOut),
        (ProviderMood::Fails, FetchFailure::Failed("the issuer is away".to_owned())),
    ] {
        world.a.is(mood);
        world.time.advance(S(30));
        let mut events = world.verifier.events();
        assert_eq!(world.reason(&unknown), TokenReason::Unavailable, "{mood:?}");
        let told = told(&mut events);
        let Event::FetchFailed { issuer, why, serves_for } = &told[0] else { panic!("{told:?}") };
        assert_eq!((issuer.as_str(), why), (A, &expected));
        assert!(*serves_for > S(3000));
        world.verify(&token).unwrap_or_else(|refused| panic!("{mood:?}: {refused}"));
    }
}

/// Returns a verifier of one issuer with this key set.
fn verifier_of(set: String) -> TokenVerifier {
    let config = TokenVerifierConfig::default().max_keys(8);
    let config = config.issuer(Issuer::with_keys_at(A, format!("{A}/keys")).audience("shop").algorithms([
        Algorithm::Es256,
        Algorithm::Rs256,
        Algorithm::EdDsa,
    ]));
    let (clock, time) = Clock::manual();
    time.set_wall(steadfast::time::Timestamp::from_millis(super::world::START * 1000));
    let fetch = move |url: String| {
        assert_eq!(url, format!("{A}/keys"), "no discovery");
        let set = set.clone();
        async move { Ok::<_, String>(set) }
    };
    TokenVerifier::builder(fetch, config).clock(&clock).build().unwrap()
}

// Guarantee: federated_identity 6.
#[test]
fn keys_that_must_not_verify_are_left_out_of_a_set() {
    let world = World::new();
    let token = world.a.token(&claims(A));
    let set: Value = serde_json::from_str(&world.a.key_set()).unwrap();
    let key = set["keys"][0].clone();
    let edit = |edits| edited(&key, edits);
    // A key of Ed25519 with the same id.
    let ed25519 = world.b.clone();
    ed25519.rotate_to(Algorithm::EdDsa);
    let set: Value = serde_json::from_str(&ed25519.key_set()).unwrap();
    let other = |edits: Value| {
        let mut key = set["keys"][1].clone();
        key["kid"] = json!("key-1");
        key.as_object_mut().unwrap().remove("alg");
        edits.as_object().unwrap().iter().for_each(|(name, value)| key[name] = value.clone());
        key
    };
    let short = "A".repeat(171);
    let left_out = [
        ("repeated with another key", vec![key.clone(), other(json!({}))]),
        (
            "repeated with another key and for another use",
            vec![key.clone(), other(json!({ "alg": "EdDSA" })), key.clone()],
        ),
        ("for encryption", vec![edit(json!({ "use": "enc" }))]),
        ("for other operations", vec![edit(json!({ "key_ops": ["sign"] }))]),
        ("of another algorithm", vec![edit(json!({ "alg": "RS256" }))]),
        ("of an unknown algorithm", vec![edit(json!({ "alg": "ES256K" }))]),
        ("of an unknown type", vec![edit(json!({ "kty": "XX" }))]),
        ("a secret", vec![edit(json!({ "kty": "oct", "k": "AAAA" }))]),
        ("on another curve", vec![edit(json!({ "crv": "P-384" }))]),
        ("not on the curve", vec![edit(json!({ "y": key["x"] }))]),
        ("with its private half", vec![edit(json!({ "d": "AAAA" }))]),
        ("without a coordinate", vec![edit(json!({ "y": null }))]),
        ("RSA of 1,024 bits", vec![json!({ "kty": "RSA", "kid": "key-1", "n": format!("_{short}"), "e": "AQAB" })]),
    ];
    for (name, keys) in left_out {
        // A good key, so that the set is not empty.
        let mut keys = keys;
        keys.push(edit(json!({ "kid": "good" })));
        let verifier = verifier_of(json!({ "keys": keys }).to_string());
        let mut events = verifier.events();
        let run = verifier.verify::<Value>(&token);
        let refused = steadfast::time::block_on(run).map(|_| ()).unwrap_err();
        assert_eq!(refused.reason(), TokenReason::Key, "{name}");
        let told = told(&mut events);
        let Event::KeysFetched { keys: usable, left_out, .. } = &told[0] else { panic!("{name}: {told:?}") };
        assert_eq!((*usable, *left_out), (1, keys.len() - 1), "{name}");
    }
    let many: Vec<_> = (0..9).map(|n| edit(json!({ "kid": format!("key-{n}") }))).collect();
    let verifier = verifier_of(json!({ "keys": many }).to_string());
    let run = verifier.verify::<Value>(&token);
    assert_eq!(steadfast::time::block_on(run).map(|_| ()).unwrap_err().reason(), TokenReason::Unavailable, "too many");
}

/// Regression: a good key was left out because a key that verifies nothing had its id, or because its issuer lists it
/// once for each algorithm.
// Guarantee: federated_identity 6.
#[test]
fn a_key_is_used_although_keys_that_verify_nothing_have_its_id_and_although_it_is_listed_twice() {
    let world = World::new();
    let token = world.a.token(&claims(A));
    let set: Value = serde_json::from_str(&world.a.key_set()).unwrap();
    let key = set["keys"][0].clone();
    let edit = |edits| edited(&key, edits);
    let without_id = {
        let mut key = key.clone();
        key.as_object_mut().unwrap().remove("kid");
        key
    };
    let no_id = world.a.sign(&json!({ "alg": "ES256" }), &claims(A));
    for (name, keys, unused, token) in [
        ("for encryption", vec![edit(json!({ "use": "enc" })), key.clone()], 1, &token),
        ("a secret", vec![key.clone(), json!({ "kty": "oct", "kid": "key-1", "k": "AAAA" })], 1, &token),
        ("of an unknown type", vec![key.clone(), edit(json!({ "kty": "XX" }))], 1, &token),
        ("twice", vec![key.clone(), key.clone()], 0, &token),
        ("for each algorithm", vec![edit(json!({ "alg": null })), key.clone()], 0, &token),
        ("with a null for its id", vec![edit(json!({ "kid": null })), without_id], 0, &no_id),
        ("beside others without an id", vec![edit(json!({ "kid": null, "kty": "XX" })), key.clone()], 1, &token),
    ] {
        let verifier = verifier_of(json!({ "keys": keys }).to_string());
        let mut events = verifier.events();
        steadfast::time::block_on(verifier.verify::<Value>(token))
            .unwrap_or_else(|refused| panic!("{name}: {refused}"));
        let told = told(&mut events);
        let Event::KeysFetched { keys, left_out, .. } = &told[0] else { panic!("{name}: {told:?}") };
        assert_eq!((*keys, *left_out), (1, unused), "{name}");
    }
}

// Guarantee: federated_identity 7.
#[test]
fn tenants_come_and_go_in_use() {
    let world = World::with(|config| config.issuers([issuer(A)]));
    let (of_a, of_b) = (world.a.token(&claims(A)), world.b.token(&claims(B)));
    world.verify(&of_a).unwrap();
    assert_eq!(world.reason(&of_b), TokenReason::Issuer);
    let clone = world.verifier.clone();
    clone.reconfigure(clone.config().issuer(issuer(B))).unwrap();
    assert_eq!(world.b.fetches(), 0, "fetched at its first token");
    world.verify(&of_b).unwrap();
    world.verify(&of_a).unwrap();
    assert_eq!((world.a.fetches(), world.b.fetches()), (1, 1), "an issuer that stays keeps its keys");
    clone.reconfigure(clone.config().issuers([issuer(B)])).unwrap();
    assert_eq!(world.reason(&of_a), TokenReason::Issuer, "refused at once");
    // It comes back with another audience.
    let other = Issuer::oidc(A).audience("bank").algorithms([Algorithm::Es256]);
    clone.reconfigure(clone.config().issuer(other)).unwrap();
    assert_eq!(world.reason(&of_a), TokenReason::Audience);
    assert_eq!(world.a.fetches(), 2, "its keys were forgotten");
    let invalid = clone.config().issuer(issuer(B));
    assert!(clone.reconfigure(invalid).is_err());
    world.verify(&of_b).expect("nothing has changed");
}

/// Regression: a token was accepted after its issuer had been removed during the fetch.
// Guarantee: federated_identity 7.
#[test]
fn an_issuer_that_is_removed_during_a_fetch_is_refused() {
    let world = World::new();
    let token = world.a.token(&claims(A));
    let mut call = Box::pin(world.verifier.verify::<Value>(&token));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    world.a.is(ProviderMood::Hangs);
    assert!(world.time.run_blocking(|| call.as_mut().poll(&mut cx)).is_pending());
    world.verifier.update(|config| config.issuers([issuer(B)])).unwrap();
    assert!(world.time.block_on(call).is_err());
}

#[test]
fn of_concurrent_changes_none_is_lost() {
    let world = World::new();
    let other = world.verifier.clone();
    let runs = std::cell::Cell::new(0);
    world
        .verifier
        .update(|config| {
            // Another task removes an issuer meanwhile.
            if runs.replace(runs.get() + 1) == 0 {
                other.update(|config| config.issuers([issuer(B)])).unwrap();
            }
            config.issuer(issuer("https://c.example"))
        })
        .unwrap();
    let names: Vec<_> = world.verifier.config().issuers.into_iter().map(|issuer| issuer.issuer).collect();
    assert_eq!((names, runs.get()), (vec![B.to_owned(), "https://c.example".to_owned()], 2));
    assert!(world.verifier.update(|config| config.leeway(S(900))).is_err());
}

// Guarantee: federated_identity 6.
#[test]
fn a_discovery_document_may_name_no_key_set_without_tls() {
    let (clock, time) = Clock::manual();
    for address in ["http://127.0.0.1:80/keys", "http://localhost/keys", "http://a.example/keys", "ftp://a.example", ""]
    {
        let document = json!({ "issuer": A, "jwks_uri": address }).to_string();
        let fetch = move |_: String| {
            let document = document.clone();
            async move { Ok::<_, String>(document) }
        };
        let config = TokenVerifierConfig::default().issuer(issuer(A));
        let verifier = TokenVerifier::builder(fetch, config).clock(&clock).build().unwrap();
        let mut events = verifier.events();
        let token = steadfast::testing::IdentityProvider::new(A).token(&claims(A));
        assert!(time.block_on(verifier.verify::<Value>(&token)).is_err());
        let told = told(&mut events);
        assert!(matches!(&told[0], Event::FetchFailed { why: FetchFailure::UnsafeAddress, .. }), "{address}: {told:?}");
    }
}
