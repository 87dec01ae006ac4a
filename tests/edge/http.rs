//! Bearer tokens of requests, and the responses to refused ones.
use http::{HeaderMap, HeaderValue, Response};
use steadfast::{
    http::{bearer, token_answer},
    token::{TokenReason, TokenRefused},
};

fn of(values: &[&[u8]]) -> Result<String, TokenReason> {
    let mut headers = HeaderMap::new();
    for value in values {
        headers.append("authorization", HeaderValue::from_bytes(value).unwrap());
    }
    bearer(&headers).map(str::to_owned).map_err(|refused| refused.reason())
}

// Guarantee: federated_identity 2.
#[test]
fn a_request_has_one_bearer_token_in_one_header() {
    for (values, expected) in [
        (vec![], Err(TokenReason::Missing)),
        (vec!["Basic YWRh"], Err(TokenReason::Missing)),
        (vec!["Bearer"], Err(TokenReason::Malformed)),
        (vec!["Bearer "], Err(TokenReason::Malformed)),
        (vec!["Bearer a.b.c, Bearer d.e.f"], Err(TokenReason::Malformed)),
        (vec!["Bearer a b"], Err(TokenReason::Malformed)),
        (vec!["Bearer a.b.c", "Bearer a.b.c"], Err(TokenReason::Malformed)),
        (vec!["Basic YWRh", "Bearer a.b.c"], Err(TokenReason::Malformed)),
        (vec!["Bearer a.b.ü"], Err(TokenReason::Malformed)),
        (vec!["Bearer a.b.c"], Ok("a.b.c")),
        (vec!["bearer  a.b.c "], Ok("a.b.c")),
    ] {
        let bytes: Vec<_> = values.iter().map(|value| value.as_bytes()).collect();
        assert_eq!(of(&bytes), expected.map(str::to_owned), "{values:?}");
    }
}

// Guarantee: federated_identity 8.
#[test]
fn a_response_tells_no_invalid_token_from_another() {
    let answer = |reason| token_answer::<String>(&TokenRefused::new(reason));
    let challenge = |answer: &Response<String>| answer.headers().get("www-authenticate").cloned();
    let missing = answer(TokenReason::Missing);
    assert_eq!((missing.status().as_u16(), challenge(&missing).unwrap()), (401, "Bearer".parse().unwrap()));
    let scope = answer(TokenReason::Scope);
    assert_eq!(scope.status(), 403);
    assert_eq!(challenge(&scope).unwrap(), "Bearer error=\"insufficient_scope\"");
    let away = answer(TokenReason::Unavailable);
    assert_eq!((away.status().as_u16(), challenge(&away)), (503, None));
    for reason in [
        TokenReason::Malformed,
        TokenReason::Algorithm,
        TokenReason::Issuer,
        TokenReason::Key,
        TokenReason::Signature,
        TokenReason::Audience,
        TokenReason::Expired,
        TokenReason::NotYetValid,
    ] {
        let answer = answer(reason);
        assert_eq!(answer.status(), 401);
        assert_eq!(challenge(&answer).unwrap(), "Bearer error=\"invalid_token\"");
        assert_eq!((answer.headers().len(), answer.body().as_str()), (1, ""), "{reason:?}");
    }
}
