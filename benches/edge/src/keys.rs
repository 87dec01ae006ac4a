//! Checks of a valet key, and decodes of a token with the same claims: with a revocable one, an answer of the store, too.
use std::{hint::black_box, sync::Arc};

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use serde::{Deserialize, Serialize};
use steadfast::{
    store::{InMemoryStore, Key as RowKey, Store},
    token::{Key, KeyRing},
    valet_key::{Grant, Operation, ValetKeyConfig, ValetKeys},
};

use crate::{Line, Work, often};

const SECRET: [u8; 32] = [7; 32];
const PATH: &str = "/t7/out/report.pdf";

#[derive(Serialize, Deserialize)]
struct Claims {
    aud: String,
    exp: u64,
    nbf: u64,
    jti: String,
    path: String,
    operation: String,
}

pub fn lines() -> Vec<Line> {
    let line = |name, is_revocable| Line { name, most: 1.1, ours: ours(is_revocable), theirs: theirs(is_revocable) };
    vec![line("check a valet key, HS256", false), line("check a revocable one", true)]
}

fn ours(is_revocable: bool) -> Work {
    let ring = KeyRing::new([Key::secret("one", &SECRET).expect("a key")]).expect("a ring");
    let built = ValetKeys::builder("files", ring, ValetKeyConfig::default());
    let built = if is_revocable { built.revocable(Arc::new(InMemoryStore::new())) } else { built };
    let keys = built.build().expect("valid settings");
    let key = Arc::new(keys.issue(Grant::get(&PATH[1..])).expect("a key"));
    often(move || {
        let (keys, key) = (keys.clone(), key.clone());
        async move {
            let pass = keys.check(Operation::Get, PATH, key.as_str()).await.expect("it passes");
            assert_eq!(black_box(pass.path()), &PATH[1..]);
        }
    })
}

fn theirs(is_revocable: bool) -> Work {
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("one".to_owned());
    let claims = Claims {
        aud: "files".to_owned(),
        exp: 4_000_000_000,
        nbf: 1_700_000_000,
        jti: "f".repeat(32),
        path: PATH.to_owned(),
        operation: "get".to_owned(),
    };
    let token = jsonwebtoken::encode(&header, &claims, &EncodingKey::from_secret(&SECRET)).expect("a token");
    let mut rules = Validation::new(Algorithm::HS256);
    rules.set_audience(&["files"]);
    rules.validate_nbf = true;
    let parts = Arc::new((token, DecodingKey::from_secret(&SECRET), rules, InMemoryStore::new()));
    often(move || {
        let parts = parts.clone();
        async move {
            let (token, key, rules, store) = &*parts;
            let read = jsonwebtoken::decode::<Claims>(token, key, rules).expect("a good token").claims;
            assert!(read.path == PATH && read.operation == "get");
            if is_revocable {
                let revoked = store.get(RowKey::new("revoked", &read.jti)).await.expect("an answer");
                assert!(revoked.is_none());
            }
            black_box(read);
        }
    })
}
