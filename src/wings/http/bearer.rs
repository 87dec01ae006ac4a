//! Bearer tokens of requests (RFC 6750), and the responses to those that are refused.
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{AUTHORIZATION, WWW_AUTHENTICATE},
};

use super::answer::respond;
use crate::token::{TokenReason, TokenRefused};

/// Returns the bearer token of a request, from its one `authorization` header. A token in the query
/// or in a form is never read.
///
/// ```
/// use http::HeaderMap;
/// use steadfast::{http::bearer, token::TokenReason};
///
/// let mut headers = HeaderMap::new();
/// assert_eq!(bearer(&headers).unwrap_err().reason(), TokenReason::Missing);
/// headers.insert("authorization", "Bearer a.b.c".parse().unwrap());
/// assert_eq!(bearer(&headers), Ok("a.b.c"));
/// headers.append("authorization", "Bearer a.b.c".parse().unwrap());
/// assert_eq!(bearer(&headers).unwrap_err().reason(), TokenReason::Malformed);
/// ```
///
/// # Errors
/// [`Missing`](TokenReason::Missing) without the header, or with another scheme;
/// [`Malformed`](TokenReason::Malformed) with two headers, or a value of another form.
pub fn bearer(headers: &HeaderMap) -> Result<&str, TokenRefused> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(TokenReason::Missing)?;
    if values.next().is_some() {
        return Err(TokenReason::Malformed.into());
    }
    let text = value.to_str().map_err(|_| TokenReason::Malformed)?;
    let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(TokenReason::Missing.into());
    }
    let token = token.trim_matches(' ');
    let is_one = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/=".contains(&byte);
    if !token.is_empty() && token.bytes().all(is_one) { Ok(token) } else { Err(TokenReason::Malformed.into()) }
}

/// Returns the response to a request whose token is refused.
///
/// | reason | status | `www-authenticate` |
/// |---|---|---|
/// | missing | 401 | `Bearer` |
/// | scope | 403 | `Bearer error="insufficient_scope"` |
/// | unavailable | 503, with `retry-after` | |
/// | all others | 401 | `Bearer error="invalid_token"` |
///
/// The response does not tell why a token is invalid.
pub fn token_answer<B: Default>(refused: &TokenRefused) -> Response<B> {
    let (status, challenge) = match refused.reason() {
        TokenReason::Missing => (StatusCode::UNAUTHORIZED, "Bearer"),
        TokenReason::Scope => (StatusCode::FORBIDDEN, "Bearer error=\"insufficient_scope\""),
        TokenReason::Unavailable => return respond(StatusCode::SERVICE_UNAVAILABLE, refused.retry_after()),
        _ => (StatusCode::UNAUTHORIZED, "Bearer error=\"invalid_token\""),
    };
    let mut answer = respond(status, None);
    answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
    answer
}
