//! A token under a known key, and one under an unknown key within the cool-down.
use std::{hint::black_box, sync::Arc};

use jsonwebtoken::{DecodingKey, Validation};
use serde::Deserialize;
use serde_json::{Value, json};
use steadfast::{
    federated_identity::{Issuer, TokenVerifier, TokenVerifierConfig},
    testing::IdentityProvider,
    token::{Algorithm, TokenReason},
};

use crate::{Line, often};

const ISSUER: &str = "https://id.example";

#[derive(Deserialize)]
struct Claims {
    sub: String,
    scope: String,
    exp: u64,
}

pub async fn lines() -> Vec<Line> {
    let (es256, token, key) = subject(Algorithm::Es256).await;
    let unknown = {
        let (verifier, token) = (es256.clone(), unknown_of(&token));
        assert_eq!(verifier.verify::<Claims>(&token).await.err().map(|e| e.reason()), Some(TokenReason::Key));
        often(move || {
            let (verifier, token) = (verifier.clone(), token.clone());
            async move { assert!(black_box(verifier.verify::<Claims>(&token).await).is_err()) }
        })
    };
    let verify = |verifier: &TokenVerifier, token: &Arc<str>| {
        let (verifier, token) = (verifier.clone(), token.clone());
        often(move || {
            let (verifier, token) = (verifier.clone(), token.clone());
            async move {
                let who = verifier.verify::<Claims>(&token).await.expect("a good token");
                black_box((who.claims().sub.len(), who.claims().scope.len(), who.claims().exp));
            }
        })
    };
    let decode = |algorithm, key: &Arc<DecodingKey>, token: &Arc<str>| {
        let mut rules = Validation::new(algorithm);
        rules.set_audience(&["shop"]);
        rules.set_issuer(&[ISSUER]);
        rules.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
        rules.validate_nbf = true;
        let (rules, key, token) = (Arc::new(rules), key.clone(), token.clone());
        often(move || {
            let (rules, key, token) = (rules.clone(), key.clone(), token.clone());
            async move {
                let claims = jsonwebtoken::decode::<Claims>(&*token, &key, &rules).expect("a good token").claims;
                black_box((claims.sub.len(), claims.scope.len(), claims.exp));
            }
        })
    };
    let mut lines = vec![Line {
        name: "verify, known key, ES256",
        most: 1.05,
        ours: verify(&es256, &token),
        theirs: decode(jsonwebtoken::Algorithm::ES256, &key, &token),
    }];
    let refuse = Line {
        name: "refuse an unknown key; theirs is our verify",
        most: 0.05,
        ours: unknown,
        theirs: verify(&es256, &token),
    };
    let (rs256, token, key) = subject(Algorithm::Rs256).await;
    lines.push(Line {
        name: "verify, known key, RS256",
        most: 1.05,
        ours: verify(&rs256, &token),
        theirs: decode(jsonwebtoken::Algorithm::RS256, &key, &token),
    });
    lines.push(refuse);
    lines
}

/// Returns a verifier that has the key, a token of it, and the key for jsonwebtoken.
async fn subject(algorithm: Algorithm) -> (TokenVerifier, Arc<str>, Arc<DecodingKey>) {
    let provider = IdentityProvider::new(ISSUER);
    if algorithm != Algorithm::Es256 {
        let first = "key-1";
        provider.rotate_to(algorithm);
        provider.withdraw(first);
    }
    let set: Value = serde_json::from_str(&provider.key_set()).expect("JSON");
    let member = |name: &str| set["keys"][0][name].as_str().unwrap_or_default().to_owned();
    let key = match algorithm {
        Algorithm::Es256 => DecodingKey::from_ec_components(&member("x"), &member("y")),
        _ => DecodingKey::from_rsa_components(&member("n"), &member("e")),
    };
    let claims = json!({ "iss": ISSUER, "aud": "shop", "sub": "ada", "exp": 4_000_000_000_u64, "iat": 1_800_000_000,
        "scope": "orders:read orders:write", "email": "ada@id.example", "tenant": "t7" });
    let token = provider.token(&claims);
    let issuer = Issuer::oidc(ISSUER).audience("shop").algorithms([algorithm]);
    let fetch = move |url| provider.clone().fetch(url);
    let verifier = TokenVerifier::new(fetch, TokenVerifierConfig::default().issuer(issuer)).expect("valid settings");
    verifier.verify::<Value>(&token).await.expect("a good token");
    (verifier, token.into(), Arc::new(key.expect("a key")))
}

/// Returns the same token with another id of its key.
fn unknown_of(token: &str) -> Arc<str> {
    let (_, rest) = token.split_once('.').expect("three parts");
    // {"alg":"ES256","kid":"key-9","typ":"JWT"}
    format!("eyJhbGciOiJFUzI1NiIsImtpZCI6ImtleS05IiwidHlwIjoiSldUIn0.{rest}").into()
}
