//! A table of tokens made by hand: one for each refusal, each refused for its reason.
use serde_json::{Value, json};
use steadfast::{
    federated_identity::TokenVerifierEvent,
    testing::IdentityProvider,
    token::{Algorithm, Key, KeyRing, TokenReason},
};

use super::world::{A, B, START, World, claims, told};
use crate::base64;

fn with(mut value: Value, edits: Value) -> Value {
    for (name, edit) in edits.as_object().unwrap() {
        match edit {
            Value::Null => drop(value.as_object_mut().unwrap().remove(name)),
            edit => value[name] = edit.clone(),
        }
    }
    value
}

/// Splits a token into its header, claims and signature, in base64.
fn parts(token: &str) -> [&str; 3] {
    token.split('.').collect::<Vec<_>>().try_into().unwrap()
}

// Guarantee: federated_identity 1, 2, 8.
#[test]
fn each_token_made_by_hand_is_refused_for_its_reason() {
    use TokenReason::{
        Algorithm as Alg, Audience, Expired, Issuer, Key as NoKey, Malformed, Missing, NotYetValid, Signature,
    };
    let world = World::with(|config| config.max_token(4096));
    let (a, b) = (&world.a, &world.b);
    let good = claims(A);
    let header = json!({ "alg": "ES256", "kid": "key-1", "typ": "JWT" });
    let token = a.token(&good);
    world.verify(&token).expect("the token that the others differ from");
    world.verify(&b.token(&claims(B))).expect("of another tenant");
    let before = (a.fetches(), b.fetches());
    let [head, body, signature] = parts(&token);
    let of_header = |edits| a.sign(&with(header.clone(), edits), &good);
    let of_claims = |edits| a.sign(&header, &with(good.clone(), edits));
    let unsigned = |header: &str| format!("{}.{body}.", base64(header));
    let raw = |header: &str, claims: &str| a.sign_bytes(header.as_bytes(), claims.as_bytes());
    let plain = r#"{"alg":"ES256","kid":"key-1"}"#;
    // The public key, which everybody has, as the secret of an HMAC.
    let public: Value = serde_json::from_str(&a.key_set()).unwrap();
    let secret = public["keys"][0].to_string();
    let hmac = KeyRing::new([Key::secret("key-1", secret.as_bytes()).unwrap()]).unwrap();
    let confused = hmac.sign("JWT", "shop", world.clock.wall(), &good).unwrap();
    let attacker = IdentityProvider::new(A);
    let own: Value = serde_json::from_str(&attacker.key_set()).unwrap();
    let jwk = own["keys"][0].clone();
    let forged = |edits| attacker.sign(&with(header.clone(), edits), &good);
    let flipped = {
        let mut last = signature.to_owned();
        let first = if last.starts_with('A') { "B" } else { "A" };
        last.replace_range(..1, first);
        format!("{head}.{body}.{last}")
    };
    let other_body = base64(with(good.clone(), json!({ "sub": "eve" })).to_string());
    let mut cases: Vec<(&str, String, TokenReason)> = vec![
        ("no token", String::new(), Missing),
        ("one part", head.to_owned(), Malformed),
        ("two parts", format!("{head}.{body}"), Malformed),
        ("four parts", format!("{token}.{body}"), Malformed),
        ("five parts, as an encrypted token has", format!("{token}.{body}.{body}"), Malformed),
        ("oversized", of_claims(json!({ "pad": "x".repeat(5000) })), Malformed),
        ("with padding", format!("{token}="), Malformed),
        ("with a line break", format!("{token}\n"), Malformed),
        ("with a space", format!(" {token}"), Malformed),
        ("in the other alphabet", format!("{head}.{body}.+{}", &signature[1..]), Malformed),
        ("algorithm none", unsigned(r#"{"alg":"none"}"#), Alg),
        ("algorithm None", unsigned(r#"{"alg":"None"}"#), Alg),
        ("algorithm none, with a key", unsigned(r#"{"alg":"none","kid":"key-1"}"#), Alg),
        ("no algorithm", unsigned(r#"{"kid":"key-1"}"#), Malformed),
        ("an unknown algorithm", of_header(json!({ "alg": "ES256K" })), Alg),
        ("an algorithm that is not configured", of_header(json!({ "alg": "ES384" })), Alg),
        ("the name in lower case", of_header(json!({ "alg": "es256" })), Alg),
        ("confusion of a public key and an HMAC", confused.replacen(parts(&confused)[1], body, 1), Alg),
        ("confusion of types: RSA with a key of ECDSA", of_header(json!({ "alg": "RS256" })), Alg),
        ("confusion of types: Ed25519 with a key of ECDSA", of_header(json!({ "alg": "EdDSA" })), Alg),
        ("a critical extension", of_header(json!({ "crit": ["exp"], "exp": 1 })), Malformed),
        ("an unencoded payload", of_header(json!({ "b64": false })), Malformed),
        ("an encrypted token in three parts", of_header(json!({ "enc": "A128GCM" })), Malformed),
        ("a compressed one", of_header(json!({ "zip": "DEF" })), Malformed),
        ("a nested one", of_header(json!({ "cty": "JWT" })), Malformed),
        ("a nested one without saying so", raw(plain, &token), Malformed),
        ("a header that is a list", raw(r#"["ES256","key-1"]"#, &good.to_string()), Malformed),
        ("claims that are a list", raw(plain, &format!("[\"{A}\",\"ada\",\"shop\",{}]", START + 9)), Malformed),
        ("claims that are a text", raw(plain, "\"ada\""), Malformed),
        ("an algorithm twice", raw(r#"{"alg":"ES256","alg":"none","kid":"key-1"}"#, &good.to_string()), Malformed),
        ("an unknown key", of_header(json!({ "kid": "key-9" })), NoKey),
        ("an id of a key that is a path", of_header(json!({ "kid": "../../dev/null" })), NoKey),
        ("an id of a key that is a number", of_header(json!({ "kid": 1 })), Malformed),
        ("a key in the header", forged(json!({ "jwk": jwk })), Signature),
        ("an address of keys in the header", forged(json!({ "jku": "https://evil.example/keys" })), Signature),
        ("a certificate in the header", forged(json!({ "x5c": ["MIIB"], "x5u": "https://evil.example" })), Signature),
        ("a changed signature", flipped, Signature),
        ("no signature", format!("{head}.{body}."), Signature),
        ("half a signature", format!("{head}.{body}.{}", &signature[..44]), Signature),
        ("a signature of zeros", format!("{head}.{body}.{}", base64([0; 64])), Signature),
        ("claims of another token", format!("{head}.{other_body}.{signature}"), Signature),
        ("an unknown issuer", of_claims(json!({ "iss": "https://c.example" })), Issuer),
        ("a part of the issuer", of_claims(json!({ "iss": "https://a.example/" })), Issuer),
        ("another tenant with the right key of this one", of_claims(json!({ "iss": B })), Signature),
        ("this tenant with the right key of another one", b.token(&good), Signature),
        ("no issuer", of_claims(json!({ "iss": null })), Malformed),
        ("an issuer twice", raw(plain, &format!(r#"{{"iss":"{B}","iss":"{A}","sub":"ada"}}"#)), Malformed),
        ("no end", of_claims(json!({ "exp": null })), Malformed),
        ("an end that is a text", of_claims(json!({ "exp": "1800000100" })), Malformed),
        (
            "an end beyond all numbers",
            raw(plain, &format!(r#"{{"iss":"{A}","sub":"a","aud":"shop","exp":1e999}}"#)),
            Malformed,
        ),
        ("expired", of_claims(json!({ "exp": START - 30 })), Expired),
        ("expired long ago", of_claims(json!({ "exp": -5 })), Expired),
        (
            "an end twice",
            raw(plain, &format!(r#"{{"iss":"{A}","sub":"a","aud":"shop","exp":1,"exp":{}}}"#, START + 9)),
            Malformed,
        ),
        ("not valid yet", of_claims(json!({ "nbf": START + 31 })), NotYetValid),
        ("a begin that is a text", of_claims(json!({ "nbf": "0" })), Malformed),
        (
            "bound to a key",
            of_claims(json!({ "cnf": { "jkt": "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I" } })),
            Malformed,
        ),
        ("of a logout", of_header(json!({ "typ": "logout+jwt" })), Malformed),
        ("of an event", of_header(json!({ "typ": "application/SecEvent+JWT" })), Malformed),
        ("of a hand-over", of_header(json!({ "typ": "handover+jwt" })), Malformed),
        ("no subject", of_claims(json!({ "sub": null })), Malformed),
        ("an empty subject", of_claims(json!({ "sub": "" })), Malformed),
        ("a subject that is a number", of_claims(json!({ "sub": 7 })), Malformed),
        ("no audience", of_claims(json!({ "aud": null })), Malformed),
        ("another audience", of_claims(json!({ "aud": "bank" })), Audience),
        ("a longer audience", of_claims(json!({ "aud": "shop2" })), Audience),
        ("a list of other audiences", of_claims(json!({ "aud": ["bank", "post"] })), Audience),
        ("an empty list of audiences", of_claims(json!({ "aud": [] })), Audience),
        ("an audience that is a number", of_claims(json!({ "aud": 1 })), Malformed),
    ];
    assert!(cases.len() > 55);
    let mut events = world.verifier.events();
    for (name, token, reason) in &cases {
        assert_eq!(world.verify(token).err().map(|refused| refused.reason()), Some(*reason), "{name}");
    }
    let told: Vec<_> = told(&mut events);
    assert_eq!(told.len(), cases.len());
    for ((name, token, reason), event) in cases.drain(..).zip(&told) {
        let TokenVerifierEvent::Refused { reason: told, issuer } = event else { panic!("{name}: {event:?}") };
        assert_eq!(*told, reason, "{name}");
        assert!(issuer.as_ref().is_none_or(|issuer| [A, B].contains(&issuer.as_str())), "{name}: {issuer:?}");
        let text = format!("{event:?}");
        let words = ["ada", "key-9", "dev/null", "c.example"];
        assert!(parts_of(&token).chain(words).all(|part| !text.contains(part)), "{name}: {text}");
    }
    assert_eq!((a.fetches(), b.fetches()), before, "no refusal fetches, within the cool-down");
}

fn parts_of(token: &str) -> impl Iterator<Item = &str> {
    token.split('.').filter(|part| part.len() > 20)
}

// Guarantee: federated_identity 1, 2.
#[test]
fn tokens_at_the_edge_of_a_rule_are_accepted() {
    let world = World::new();
    let header = json!({ "alg": "ES256", "kid": "key-1" });
    for (name, header_edits, edits) in [
        ("as it is", json!({}), json!({})),
        ("the type of access tokens", json!({ "typ": "at+jwt" }), json!({})),
        ("the same as a media type", json!({ "typ": "application/AT+jwt" }), json!({})),
        ("without a type", json!({ "typ": null }), json!({})),
        ("a key in the header, which is ignored", json!({ "jku": "https://evil.example", "jwk": {} }), json!({})),
        ("without the id of the only key", json!({ "kid": null }), json!({})),
        ("expired within the leeway", json!({}), json!({ "exp": START - 29 })),
        ("valid soon, within the leeway", json!({}), json!({ "nbf": START + 30 })),
        ("an end with a fraction", json!({}), json!({ "exp": 1_800_000_000.5 })),
        ("a list of audiences", json!({}), json!({ "aud": ["bank", "shop"] })),
        ("issued in the future", json!({}), json!({ "iat": START + 900 })),
    ] {
        let token = world.a.sign(&with(header.clone(), header_edits), &with(claims(A), edits));
        let who = world.verify(&token).unwrap_or_else(|refused| panic!("{name}: {refused}"));
        assert_eq!(who.subject(), (A, "ada"), "{name}");
    }
}

// Guarantee: federated_identity 1.
#[test]
fn without_an_id_exactly_one_key_may_fit() {
    let world = World::new();
    let header = json!({ "alg": "ES256" });
    let old = world.a.sign(&header, &claims(A));
    world.a.rotate_to(Algorithm::EdDsa);
    assert!(world.verify(&old).is_ok(), "the other key is of another type");
    let ed = world.a.sign(&json!({ "alg": "EdDSA" }), &claims(A));
    assert!(world.verify(&ed).is_ok());
    world.a.rotate();
    world.time.advance(super::world::S(3600));
    assert_eq!(world.reason(&old), TokenReason::Key, "two keys of the type");
    assert_eq!(world.a.fetches(), 2);
}

#[test]
fn each_algorithm_of_a_published_key_verifies() {
    let world = World::new();
    for algorithm in [Algorithm::Rs256, Algorithm::EdDsa, Algorithm::Es256] {
        world.a.rotate_to(algorithm);
        world.time.advance(super::world::S(60));
        let token = world.a.token(&claims(A));
        assert!(world.verify(&token).is_ok(), "{algorithm}");
    }
}

#[test]
fn a_subject_belongs_to_its_issuer_and_scopes_are_whole_words() {
    let world = World::new();
    let one = world.verify(&world.a.token(&claims(A))).unwrap();
    let other = world.verify(&world.b.token(&claims(B))).unwrap();
    assert_ne!(one.subject(), other.subject(), "the same `sub` at another issuer is another person");
    assert!(one.require_scope("orders:write").is_ok());
    for scope in ["orders", "orders:writer", "", "orders:read orders:write"] {
        assert_eq!(one.require_scope(scope).unwrap_err().reason(), TokenReason::Scope, "{scope:?}");
    }
    let list = with(claims(A), json!({ "scope": ["orders:write", "a"] }));
    world
        .verify(&world.a.token(&list))
        .unwrap()
        .require_scope("orders:write")
        .expect("a list, as some issuers write it");
    let list = with(claims(A), json!({ "scope": "", "scp": ["orders:read", "a b"] }));
    let who = world.verify(&world.a.token(&list)).unwrap();
    assert_eq!(who.scopes().collect::<Vec<_>>(), ["orders:read", "a", "b"]);
    let none = world.verify(&world.a.token(&with(claims(A), json!({ "scope": null })))).unwrap();
    assert!(none.require_scope("orders:read").is_err());
    assert!(!format!("{who:?}").contains("ada"), "a log shows nobody");
}

// Guarantee: federated_identity 2.
#[test]
fn an_issuer_may_demand_a_type_of_its_tokens() {
    let world = World::with(|config| config.issuers([super::world::issuer(A).token_type("at+jwt")]));
    let token =
        |typ: Value| world.a.sign(&with(json!({ "alg": "ES256", "kid": "key-1" }), json!({ "typ": typ })), &claims(A));
    world.verify(&token(json!("application/at+jwt"))).unwrap();
    for typ in [json!("JWT"), json!("id+jwt"), Value::Null] {
        assert_eq!(world.reason(&token(typ.clone())), TokenReason::Malformed, "{typ}");
    }
}

// Guarantee: federated_identity 3.
#[test]
fn the_first_token_of_a_new_key_is_accepted_also_without_ids() {
    let world = World::new();
    let header = json!({ "alg": "ES256" });
    let old = world.a.sign(&header, &claims(A));
    world.verify(&old).unwrap();
    world.a.rotate();
    world.a.withdraw("key-1");
    world.time.advance(super::world::S(30));
    let new = world.a.sign(&header, &claims(A));
    world.verify(&new).expect("the one known key was a guess");
    assert_eq!(world.reason(&old), TokenReason::Signature);
    // Fetched while two keys fit, of which one is withdrawn then.
    world.a.rotate();
    world.time.advance(super::world::S(480));
    world.verify(&new).unwrap();
    world.run_spawned();
    assert_eq!(world.reason(&new), TokenReason::Key, "two fit");
    world.a.withdraw("key-2");
    world.time.advance(super::world::S(30));
    world.verify(&world.a.sign(&header, &claims(A))).expect("one is left");
}
