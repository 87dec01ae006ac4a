//! Settings that are refused.
use steadfast::{
    federated_identity::{Issuer, TokenVerifier, TokenVerifierConfig},
    token::Algorithm,
};

use super::world::{A, S, issuer};

fn refused(config: TokenVerifierConfig) -> String {
    let fetch = |_: String| async { Ok::<_, String>(vec![]) };
    TokenVerifier::new(fetch, config).unwrap_err().to_string()
}

#[test]
fn each_setting_that_would_accept_too_much_is_refused_by_name() {
    let default = TokenVerifierConfig::default;
    let of = |issuer| refused(default().issuer(issuer));
    let es256 = [Algorithm::Es256];
    for (config, expected) in [
        (of(Issuer::oidc(A).algorithms(es256)), "issuers.0.audiences"),
        (of(Issuer::oidc(A).audience("").algorithms(es256)), "issuers.0.audiences"),
        (of(Issuer::oidc(A).audience("shop")), "issuers.0.algorithms"),
        (of(issuer(A).algorithms([Algorithm::Hs256])), "fetched keys are public"),
        (refused(default().issuer(issuer(A)).issuer(issuer(A))), "must not name an issuer twice"),
        (refused(default().leeway(S(301))), "leeway"),
        (refused(default().cooldown(S(0))), "cooldown"),
        (refused(default().cooldown(S(3600))), "cooldown"),
        (refused(default().cooldown(S(5))), "fetch_timeout"),
        (refused(default().max_stale(S(599))), "max_stale"),
        (refused(default().refresh_ahead(1.5)), "refresh_ahead"),
        (refused(default().max_token(0)), "max_token"),
    ] {
        assert!(config.contains(expected), "{config}");
    }
}

#[test]
fn an_address_without_tls_is_refused_except_on_loopback() {
    for address in [
        "http://id.example",
        "http://localhost.evil.example",
        "http://127.0.0.1@evil.example",
        "http://127.0.0.1.evil.example",
        "http://[::1]evil.example",
        "https://",
        "https://user@id.example",
        "https://id.example/a b",
        "ftp://id.example",
        "id.example",
        "",
    ] {
        assert!(refused(TokenVerifierConfig::default().issuer(issuer(address))).contains("`https`"), "{address}");
        let keys = Issuer::with_keys_at(A, address).audience("shop").algorithms([Algorithm::Es256]);
        assert!(refused(TokenVerifierConfig::default().issuer(keys)).contains("jwks_uri"), "{address}");
    }
    for address in ["http://127.0.0.1:8080", "http://localhost", "http://[::1]:80/realm", "https://id.example/t/7"] {
        let fetch = |_: String| async { Ok::<_, String>(vec![]) };
        TokenVerifier::new(fetch, TokenVerifierConfig::default().issuer(issuer(address))).unwrap();
    }
}
