//! A seal of 1 KiB that is opened, and a token of the digest that is encoded and decoded.
use std::{convert::Infallible, hint::black_box, sync::Arc};

use aws_lc_rs::{
    digest::{SHA256, digest},
    rand,
    signature::{Ed25519KeyPair, KeyPair},
};
use jsonwebtoken::{DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use steadfast::{
    codec::Codec,
    gatekeeper::{HandOver, HandOverConfig, TrustedHost, TrustedHostConfig},
    store::InMemoryStore,
    token::{Key, KeyRing},
};

use crate::{Line, often};

#[derive(Serialize, Deserialize)]
struct Claims {
    aud: String,
    exp: u64,
    id: [u8; 16],
    digest: [u8; 32],
}

pub fn lines() -> Vec<Line> {
    vec![Line { name: "seal and open 1 KiB, EdDSA", most: 1.3, ours: ours(), theirs: theirs() }]
}

fn ours() -> crate::Work {
    let copy = |bytes: &[u8]| Ok::<_, Infallible>(bytes.to_vec());
    let codec: Codec<Vec<u8>> = Codec::new(move |bytes: &Vec<u8>| copy(bytes), copy);
    let key = Key::generate("one").expect("a key");
    let keys = KeyRing::new([key.to_public().expect("a public half")]).expect("a ring");
    let ring = KeyRing::new([key]).expect("a ring");
    let gate = HandOver::new("orders", ring, codec.clone(), HandOverConfig::default()).expect("valid settings");
    let store = Arc::new(InMemoryStore::new());
    let host = TrustedHost::new("orders", keys, store, codec, TrustedHostConfig::default()).expect("valid settings");
    let content = Arc::new(vec![7; 1024]);
    often(move || {
        let (gate, host, content) = (gate.clone(), host.clone(), content.clone());
        async move {
            let sealed = gate.seal(&content).expect("a seal");
            assert_eq!(black_box(host.open(&sealed).await.expect("a content")).len(), 1024);
        }
    })
}

fn theirs() -> crate::Work {
    let pair = Ed25519KeyPair::generate().expect("a key");
    let private = EncodingKey::from_ed_der(pair.to_pkcs8().expect("PKCS #8").as_ref());
    let public = DecodingKey::from_ed_der(pair.public_key().as_ref());
    let mut rules = Validation::new(jsonwebtoken::Algorithm::EdDSA);
    rules.set_audience(&["orders"]);
    let mut header = Header::new(jsonwebtoken::Algorithm::EdDSA);
    header.kid = Some("one".to_owned());
    let parts = Arc::new((private, public, rules, header, vec![7; 1024]));
    often(move || {
        let parts = parts.clone();
        async move {
            let (private, public, rules, header, content) = &*parts;
            let mut id = [0; 16];
            rand::fill(&mut id).expect("randomness");
            let of = |content: &[u8]| -> [u8; 32] { digest(&SHA256, content).as_ref().try_into().expect("32 bytes") };
            let sent = content.clone();
            let claims = Claims { aud: "orders".to_owned(), exp: 4_000_000_000, id, digest: of(&sent) };
            let token = jsonwebtoken::encode(header, &claims, private).expect("a token");
            let read = jsonwebtoken::decode::<Claims>(&token, public, rules).expect("a good token").claims;
            assert!(read.digest == of(&sent) && read.id == id);
            black_box(sent.to_vec());
        }
    })
}
