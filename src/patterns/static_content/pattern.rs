//! Patterns of paths.

/// Returns `true` if the path has the form of the pattern: `*` stands for any text within a
/// segment, and `**` for any segments.
pub(super) fn matches(pattern: &str, path: &str) -> bool {
    let (pattern, path): (Vec<_>, Vec<_>) = (pattern.split('/').collect(), path.split('/').collect());
    segments(&pattern, &path)
}

fn segments(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern.split_first(), path.split_first()) {
        (None, None) => true,
        (Some((&"**", rest)), _) => (0..=path.len()).any(|skipped| segments(rest, &path[skipped..])),
        (Some((pattern, rest)), Some((segment, others))) => text(pattern, segment) && segments(rest, others),
        _ => false,
    }
}

/// Matches one segment, from the left: each part at its first place, and the last one at the end.
fn text(pattern: &str, mut segment: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == segment };
    let Some(after) = segment.strip_prefix(first) else { return false };
    segment = after;
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return segment.ends_with(part);
        }
        let Some((_, after)) = segment.split_once(part) else { return false };
        segment = after;
    }
    true
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::matches;

    #[test]
    fn a_star_stays_within_its_segment_and_two_do_not() {
        for (pattern, path) in [
            ("index.html", "index.html"),
            ("*.html", "index.html"),
            ("assets/**", "assets/a/b.js"),
            ("assets/**", "assets/a.js"),
            ("**/*.js", "a.js"),
            ("**/*.js", "a/b/c.js"),
            ("a*b*c", "a-bb-b-c"),
            ("**", "a/b"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("*.html", "a/index.html"),
            ("assets/**", "other/a.js"),
            ("assets/*", "assets/a/b.js"),
            ("a*b*c", "a-c"),
            ("a*a", "a"),
            ("", "a"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }
}
