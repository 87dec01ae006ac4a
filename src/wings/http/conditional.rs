//! Conditional requests: the validator of a response, and the headers that repeat it.
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ETAG, IF_MODIFIED_SINCE, IF_NONE_MATCH, LAST_MODIFIED},
};

use crate::validator::Validator;

/// Returns the validator in the headers of a response, or `None` if it has none.
///
/// ```
/// use http::{HeaderMap, HeaderValue};
/// use steadfast::http::{make_conditional, validator_of};
///
/// let mut response = HeaderMap::new();
/// assert_eq!(validator_of(&response), None);
/// response.insert("etag", HeaderValue::from_static("\"33a64df5\""));
/// let validator = validator_of(&response).unwrap(); // goes into `Loaded::validator`
///
/// // The next request; a response with status 304 has no body, and means "not modified".
/// let mut request = HeaderMap::new();
/// make_conditional(&mut request, &validator);
/// assert_eq!(request["if-none-match"], "\"33a64df5\"");
/// ```
pub fn validator_of(headers: &HeaderMap) -> Option<Validator> {
    let text = |name| headers.get(name)?.to_str().ok().map(ToOwned::to_owned);
    let mut validator = Validator::default();
    (validator.etag, validator.last_modified) = (text(ETAG), text(LAST_MODIFIED));
    Some(validator).filter(|validator| *validator != Validator::default())
}

/// Adds the headers of a conditional request: `if-none-match` and `if-modified-since`. A part that
/// is no valid header is left out.
pub fn make_conditional(headers: &mut HeaderMap, validator: &Validator) {
    let mut set = |name: HeaderName, text: &Option<String>| {
        if let Some(value) = text.as_ref().and_then(|text| HeaderValue::from_str(text).ok()) {
            headers.insert(name, value);
        }
    };
    set(IF_NONE_MATCH, &validator.etag);
    set(IF_MODIFIED_SINCE, &validator.last_modified);
}
