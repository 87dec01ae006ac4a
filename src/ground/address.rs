//! Addresses in configurations: with TLS, or on this machine.

/// Rule of an address that [`is_safe`].
pub(crate) const SAFE: &str = "must be an address with `https`, or with `http` on loopback";

/// Returns `true` for an address with TLS, and for one on loopback.
pub(crate) fn is_safe(url: &str) -> bool {
    let is_plain = |rest: &str| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_graphic());
    let authority = |rest: &'_ str| rest.split(['/', '?', '#']).next().unwrap_or_default().to_owned();
    if let Some(rest) = url.strip_prefix("https://") {
        return is_plain(rest) && !authority(rest).is_empty() && !authority(rest).contains('@');
    }
    let Some(rest) = url.strip_prefix("http://").filter(|rest| is_plain(rest)) else { return false };
    let authority = authority(rest);
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']').unwrap_or_default(),
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    if !port.strip_prefix(':').unwrap_or(port).bytes().all(|byte| byte.is_ascii_digit()) {
        return false;
    }
    let is_loopback = host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
    !authority.contains('@') && (host == "localhost" || is_loopback)
}
