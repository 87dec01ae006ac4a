//! Rights of a request, and the checks that tell a page's own form from a forged one.
use std::{
    net::IpAddr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use http::{HeaderMap, Uri, header, request::Parts, uri::Authority};

/// Rights of a request. Names of users are shown, and are part of events.
#[derive(Debug, Clone, PartialEq, Eq)]
// Exhaustive: a further right must be decided on wherever these are.
pub enum Access {
    /// None: the request is answered with 403.
    None,
    /// The user sees everything, and can do nothing.
    Read(String),
    /// The user sees everything, and can act.
    Operate(String),
}

impl Access {
    pub(super) fn user(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Read(user) | Self::Operate(user) => Some(user),
        }
    }

    pub(super) const fn operates(&self) -> bool {
        matches!(self, Self::Operate(_))
    }
}

/// The function that decides on requests.
pub(super) type Authorize = Arc<dyn Fn(&Parts) -> Access + Send + Sync>;

/// Returns the rights of a request: none if the function panics.
pub(super) fn decide(authorize: &Authorize, parts: &Parts) -> Access {
    catch_unwind(AssertUnwindSafe(|| authorize(parts))).unwrap_or(Access::None)
}

/// Returns `true` if a browser says that the request comes from a page of the same origin.
///
/// Browsers send `Sec-Fetch-Site` over HTTPS and to this machine, and `Origin` with each form. It
/// is `null` if the policy of the form's page is to send no referrer to its own site. Neither can
/// be set by a page of another site. A request with neither is refused.
pub(super) fn is_own_page(parts: &Parts) -> bool {
    let text = |name| text(&parts.headers, name);
    match (text("sec-fetch-site"), text("origin")) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => {
            let host = host(parts);
            let origin = origin.parse::<Uri>().ok();
            let origin = origin.as_ref().and_then(|origin| origin.authority()).map(|authority| authority.as_str());
            host.is_some() && origin == host
        }
        (None, None) => false,
    }
}

/// Returns `true` if a page of another site made a browser send the request, without opening it.
pub(super) fn is_from_another_site(parts: &Parts) -> bool {
    let text = |name| text(&parts.headers, name);
    text("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none"))
        && text("sec-fetch-mode") != Some("navigate")
}

/// Returns `true` if the request names the console as this machine, by its address, by one of these
/// names, or not at all.
///
/// A browser names what stands in its address bar. A page of another site, whose name leads to the
/// address of the console from one moment to the next, is of that name.
pub(super) fn is_for_host(parts: &Parts, hosts: &[String]) -> bool {
    let Some(authority) = host(parts) else { return true };
    let Ok(authority) = authority.parse::<Authority>() else { return false };
    let host = authority.host().trim_start_matches('[').trim_end_matches(']');
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok()
        || hosts.iter().any(|named| named.eq_ignore_ascii_case(host))
}

/// Returns the host of the request with its port, as the client names it.
fn host(parts: &Parts) -> Option<&str> {
    parts.uri.authority().map(|authority| authority.as_str()).or(text(&parts.headers, header::HOST.as_str()))
}

/// Returns the only value of a header as text. Two values are none: a program between may read the
/// other one.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => Some(value.to_str().unwrap_or_default()),
        // Present, and equal to nothing that is allowed.
        (Some(_), Some(_)) => Some(""),
        (None, _) => None,
    }
}
