//! Random tokens, seals, paths and requests: none panics, and none is accepted. `STEADFAST_FUZZED` sets their number.
use std::{convert::Infallible, env, sync::Arc};

use serde_json::Value;
use steadfast::{
    codec::Codec,
    entropy::Entropy,
    federated_identity::{TokenVerifier, TokenVerifierConfig},
    gatekeeper::{HandOver, HandOverConfig, TrustedHost, TrustedHostConfig},
    http::strict_path,
    store::InMemoryStore,
    testing::IdentityProvider,
    time::{Clock, Timestamp},
    token::{Key, KeyRing},
};

use crate::{
    federated_identity::{A, World, claims},
    gatekeeper::requests,
};

/// Number of inputs of each kind.
pub(crate) fn inputs() -> u64 {
    env::var("STEADFAST_FUZZED").map_or(20_000, |number| number.parse().expect("STEADFAST_FUZZED: a number"))
}

/// Returns the bytes with a few random edits: changed, removed, repeated, moved and foreign ones.
pub(crate) fn mutated(bytes: &[u8], foreign: &[&[u8]], entropy: &Entropy) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=entropy.up_to(3) {
        let at = |len: usize| entropy.up_to(len as u64) as usize;
        let (from, to) = (at(bytes.len()), at(bytes.len()));
        let (from, to) = (from.min(to), from.max(to));
        match entropy.up_to(6) {
            0 if from < bytes.len() => bytes[from] = entropy.up_to(255) as u8,
            1 if from < bytes.len() => bytes[from] ^= 1 << entropy.up_to(7),
            2 => drop(bytes.drain(from..to)),
            3 => {
                let part = bytes[from..to].to_vec();
                drop(bytes.splice(from..from, part));
            }
            4 => bytes.truncate(from),
            5 => {
                let part = foreign[at(foreign.len() - 1)];
                drop(bytes.splice(from..to, part.iter().copied()));
            }
            _ => bytes.insert(from, b"./=%-_\0 \"{}[],:"[at(14)]),
        }
    }
    bytes
}

#[test]
fn of_random_tokens_none_is_accepted() {
    let world = World::new();
    let entropy = Entropy::from_seed(1);
    let ring = KeyRing::new([Key::generate("a").unwrap(), Key::secret("b", &[7; 32]).unwrap()]).unwrap();
    let wall = world.clock.wall();
    let own = ring.sign("t+jwt", "a", wall + std::time::Duration::from_secs(9), &7).unwrap();
    let theirs = world.a.token(&claims(A));
    world.verify(&theirs).unwrap();
    let parts: Vec<&[u8]> = [&own, &theirs].iter().flat_map(|token| token.split('.')).map(str::as_bytes).collect();
    // Headers and claims that differ in their JSON, with the signature of the others.
    let header = br#"{"alg":"ES256","kid":"key-1","typ":"JWT"}"#;
    let body = claims(A).to_string();
    let words: [&[u8]; 8] =
        [b"\"none\"", b"\"HS256\"", b"\"EdDSA\"", b"null", b"1e400", b"[[[[", b"\"crit\":[]", b"\\u0000"];
    let signature = theirs.rsplit('.').next().unwrap();
    let mut accepted = 0;
    for n in 0..inputs() {
        let token = match n % 4 {
            0 => String::from_utf8_lossy(&mutated(theirs.as_bytes(), &parts, &entropy)).into_owned(),
            1 => String::from_utf8_lossy(&mutated(own.as_bytes(), &parts, &entropy)).into_owned(),
            2 => {
                let (header, body) = (mutated(header, &words, &entropy), mutated(body.as_bytes(), &words, &entropy));
                format!("{}.{}.{signature}", crate::base64(header), crate::base64(body))
            }
            _ => {
                let length = entropy.up_to(200);
                let bytes: Vec<u8> = (0..length).map(|_| entropy.up_to(127) as u8).collect();
                String::from_utf8(bytes).unwrap()
            }
        };
        let is_same = token == own || token == theirs;
        let by_ring = ring.verify::<Value>("t+jwt", "a", wall, &token).is_ok();
        accepted += u64::from(!is_same && (by_ring || world.verify(&token).is_ok()));
    }
    assert_eq!(accepted, 0);
}

#[test]
fn of_random_claims_behind_a_valid_signature_those_are_accepted_that_the_rules_name() {
    let world = World::new();
    let entropy = Entropy::from_seed(5);
    let body = claims(A).to_string();
    let words: [&[u8]; 9] =
        [b"\"shop\"", b"1e400", b"-1", b"null", b"[[[[", b"\"sub\":\"eve\",", b"\"exp\":", b"{}", b"\\u0000"];
    world.verify(&world.a.token(&claims(A))).unwrap();
    let mut accepted = 0;
    // A signature takes longer than a refusal.
    for _ in 0..inputs() / 10 {
        let claims = mutated(body.as_bytes(), &words, &entropy);
        let token = world.a.sign_bytes(br#"{"alg":"ES256","kid":"key-1"}"#, &claims);
        if let Ok(who) = world.verify(&token) {
            accepted += 1;
            let claims: Value = serde_json::from_slice(&claims).unwrap();
            let aud = &claims["aud"];
            let is_ours = aud == "shop" || aud.as_array().is_some_and(|all| all.iter().any(|one| one == "shop"));
            let exp = claims["exp"].as_f64().unwrap();
            assert!(is_ours && claims["iss"] == A && exp + 30.0 > 1_800_000_000.0, "{claims}");
            assert!(claims["sub"] == who.subject().1 && !who.subject().1.is_empty(), "{claims}");
        }
    }
    assert!(accepted > 0);
}

/// Returns `true` if a set has a public key, by a reader of its own.
fn is_in(set: &[u8], key: &Value) -> bool {
    let Ok(set) = serde_json::from_slice::<Value>(set) else { return false };
    let Some(keys) = set["keys"].as_array() else { return false };
    keys.iter().any(|one| {
        ["kty", "crv", "x", "y"].iter().all(|name| one[name] == key[name]) && one.get("d").is_none_or(Value::is_null)
    })
}

#[test]
fn of_random_key_sets_none_verifies_a_token_whose_key_it_does_not_have() {
    let (provider, stranger) = (IdentityProvider::new(A), IdentityProvider::new(A));
    let (token, foreign) = (provider.token(&claims(A)), stranger.token(&claims(A)));
    let keys = |of: &IdentityProvider| serde_json::from_str::<Value>(&of.key_set()).unwrap()["keys"][0].clone();
    let (own, other) = (keys(&provider), keys(&stranger));
    let mut second = other.clone();
    second["kid"] = "key-2".into();
    let (set, words) = (
        serde_json::json!({ "keys": [own, second] }).to_string(),
        [
            &b",\"kid\":\"key-1\""[..],
            b",\"kid\":\"key-2\"",
            b",\"kid\":null",
            b",\"use\":\"enc\"",
            b",\"alg\":\"none\"",
            b",\"kty\":\"oct\",\"k\":\"AAAA\"",
            b",\"d\":\"AAAA\"",
            b",\"y\":\"AAAA\"",
            b",\"crv\":\"P-384\"",
            b"[[[[",
            b"{}",
            b"1e400",
            b"\\u0000",
        ],
    );
    let document = format!(r#"{{"issuer":"{A}","jwks_uri":"{A}/keys"}}"#);
    let entropy = Entropy::from_seed(6);
    let (clock, time) = Clock::manual();
    time.set_wall(Timestamp::from_millis(1_800_000_000_000));
    let served = Arc::new(std::sync::Mutex::new((document.clone().into_bytes(), set.clone().into_bytes())));
    let source = served.clone();
    let fetch = move |url: String| {
        let (document, set) = source.lock().unwrap().clone();
        let is_safe = url.starts_with("https://") || url.starts_with("http://127.") || url.starts_with("http://[::1]");
        assert!(is_safe || url.starts_with("http://localhost"), "{url:?}");
        async move { Ok::<_, String>(if url.ends_with("openid-configuration") { document } else { set }) }
    };
    let config = TokenVerifierConfig::default().issuer(crate::federated_identity::issuer(A));
    let verifier = TokenVerifier::builder(fetch, config).clock(&clock).build().unwrap();
    let (mut accepted, mut wrong, mut refused) = (0, 0, 0);
    for n in 0..inputs() {
        {
            let mut served = served.lock().unwrap();
            // Each eighth time the document of discovery differs, too.
            served.0 = document.clone().into_bytes();
            if n % 8 == 0 {
                served.0 =
                    mutated(document.as_bytes(), &[b"http://", b"\"issuer\":", b"127.0.0.1", b"@", b"#"], &entropy);
            }
            served.1 = if n % 2 == 0 {
                mutated(set.as_bytes(), &words, &entropy)
            } else {
                // Members that replace others, at the ends of keys.
                let mut set = set.clone().into_bytes();
                for _ in 0..=entropy.up_to(2) {
                    let ends: Vec<_> = (0..set.len()).filter(|at| set[*at] == b'}').collect();
                    let at = ends[entropy.up_to(1) as usize];
                    let member = words[entropy.up_to(8) as usize];
                    drop(set.splice(at..at, member.iter().copied()));
                }
                set
            };
        }
        // So late that the keys before do not serve any more.
        time.advance(std::time::Duration::from_secs(3600));
        time.set_wall(Timestamp::from_millis(1_800_000_000_000));
        let is_accepted = |token: &str| time.block_on(verifier.verify::<Value>(token)).is_ok();
        let set = served.lock().unwrap().1.clone();
        if is_accepted(&token) {
            accepted += 1;
            wrong += u64::from(!is_in(&set, &own));
        } else {
            refused += 1;
        }
        // Its key has another id, except where the set was changed so.
        wrong += u64::from(is_accepted(&foreign) && !is_in(&set, &other));
    }
    assert_eq!(wrong, 0);
    assert!(accepted > 0 && refused > 0, "{accepted} accepted, {refused} refused");
}

#[test]
fn of_random_seals_none_is_opened() {
    let (clock, time) = Clock::manual();
    time.set_wall(Timestamp::from_millis(1_800_000_000_000));
    let entropy = Entropy::from_seed(2);
    let key = Key::generate("a").unwrap();
    let (ring, keys) = (KeyRing::new([key.clone()]).unwrap(), KeyRing::new([key.to_public().unwrap()]).unwrap());
    let codec = || {
        Codec::<Vec<u8>>::new(|bytes| Ok::<_, Infallible>(bytes.clone()), |bytes| Ok::<_, Infallible>(bytes.to_vec()))
    };
    let gate = HandOver::builder("orders", ring, codec(), HandOverConfig::default()).clock(&clock).build().unwrap();
    let store = Arc::new(InMemoryStore::builder().clock(&clock).build());
    let host = TrustedHost::builder("orders", keys, store, codec(), TrustedHostConfig::default()).clock(&clock).build();
    let host = host.unwrap();
    let (one, other) = (gate.seal(&b"an order".to_vec()).unwrap(), gate.seal(&b"another".to_vec()).unwrap());
    let parts: Vec<&[u8]> = [&one, &other].iter().flat_map(|sealed| sealed.split(|b| b".\n".contains(b))).collect();
    let mut opened = 0;
    for _ in 0..inputs() {
        let sealed = mutated(&one, &parts, &entropy);
        opened += u64::from(sealed != one && sealed != other && time.block_on(host.open(&sealed)).is_ok());
    }
    assert_eq!(opened, 0);
    assert_eq!(time.block_on(host.open(&one)).unwrap(), b"an order");
}

/// Decodes a path as often as it changes, takes both slashes for one, and resolves dots: the most that hops do together.
fn as_lenient_hops(path: &[u8]) -> Vec<Vec<u8>> {
    let mut path = path.to_vec();
    for _ in 0..4 {
        let mut decoded = Vec::new();
        let mut at = 0;
        while at < path.len() {
            let digit = |at: usize| path.get(at).and_then(|byte: &u8| char::from(*byte).to_digit(16));
            match (path[at], digit(at + 1), digit(at + 2)) {
                (b'%', Some(high), Some(low)) => {
                    decoded.push((high * 16 + low) as u8);
                    at += 3;
                }
                (byte, ..) => {
                    decoded.push(byte);
                    at += 1;
                }
            }
        }
        path = decoded;
    }
    path.split(|byte| b"/\\".contains(byte)).map(<[u8]>::to_vec).collect()
}

#[test]
fn of_random_paths_none_that_is_accepted_means_another_one_to_lenient_hops() {
    let entropy = Entropy::from_seed(3);
    let words: [&[u8]; 14] =
        [b"..", b"/", b"%2e", b"%2F", b"%5c", b"%25", b"\\", b";", b"%00", b"a", b".", b"%c0%af", b"%u002e", b"%%"];
    let mut accepted = 0;
    for _ in 0..inputs() {
        let mut path = vec![b'/'];
        (0..entropy.up_to(6)).for_each(|_| path.extend(words[entropy.up_to(13) as usize]));
        let path = mutated(&path, &words, &entropy);
        let Ok(path) = std::str::from_utf8(&path) else { continue };
        if strict_path(path).is_ok() {
            accepted += 1;
            let plain: Vec<_> = path.split('/').collect();
            let lenient = as_lenient_hops(path.as_bytes());
            assert_eq!(plain.len(), lenient.len(), "{path}: other segments");
            assert!(
                lenient.iter().all(|segment| !matches!(&segment[..], b"." | b"..") && !segment.contains(&0)),
                "{path}"
            );
        }
    }
    assert!(accepted > 0);
}

#[test]
fn of_random_requests_none_passes_that_the_rules_do_not_name() {
    let world = requests::World::new();
    let entropy = Entropy::from_seed(4);
    let one = |list: &[&'static [u8]]| list[entropy.up_to(list.len() as u64 - 1) as usize];
    let methods: [&[u8]; 6] = [b"POST", b"GET", b"PUT", b"DELETE", b"post", b"CONNECT"];
    let targets: [&[u8]; 7] =
        [b"/orders", b"/orders/7", b"/orders/..", b"/orders/%2e", b"http://evil.example/orders", b"*", b"/orders?a=b"];
    let names: [&[u8]; 8] = [
        b"content-length",
        b"content-type",
        b"transfer-encoding",
        b"host",
        b"x-forwarded-for",
        b"content-encoding",
        b"accept",
        b"idempotency-key",
    ];
    let values: [&[u8]; 9] =
        [b"9", b"0", b"application/json", b"chunked", b"gzip", b"identity", b"text/plain", b"99999999999", b"+9"];
    let (mut built, mut passed) = (0, 0);
    for _ in 0..inputs() {
        let maybe = |bytes: &'static [u8], list: &[&[u8]]| {
            if entropy.up_to(5) == 0 { mutated(bytes, list, &entropy) } else { bytes.to_vec() }
        };
        let target = maybe(one(&targets), &targets);
        let mut request = http::Request::builder().method(one(&methods)).uri(&target[..]);
        if entropy.up_to(1) == 0 {
            request = request.header("content-type", "application/json").header("content-length", 9);
        }
        for _ in 0..entropy.up_to(3) {
            request = request.header(&maybe(one(&names), &names)[..], &maybe(one(&values), &values)[..]);
        }
        let Ok(request) = request.body(world.body(&["{\"a\":", "[7]}"], false)) else { continue };
        built += 1;
        let (before, headers) = (world.passed(), request.headers().clone());
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let has_host = request.uri().authority().is_some();
        let status = world.send(request).status().as_u16();
        if world.passed() > before {
            passed += 1;
            let is_order = method == "POST" && path == "/orders" && headers["content-length"] == "9";
            let is_look = method == "GET" && path.strip_prefix("/orders/").is_some_and(|id| !id.contains('/'));
            assert!((is_order || is_look) && status == 200 && !has_host, "{method} {path} {headers:?}");
            assert!(
                !headers.contains_key("transfer-encoding") && !headers.contains_key("content-encoding"),
                "{headers:?}"
            );
        } else {
            assert!([400, 404, 405, 411, 413, 414, 415].contains(&status), "{method} {path} {headers:?}: {status}");
        }
    }
    assert!(built > passed && passed > 0, "{built} requests, {passed} passed");
}
