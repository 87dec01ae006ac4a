//! Random tokens: none panics, and none is accepted. `STEADFAST_FUZZED` sets their number.
use std::env;

use serde_json::Value;
use steadfast::{
    entropy::Entropy,
    token::{Key, KeyRing},
};

use crate::federated_identity::{A, World, claims};

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
