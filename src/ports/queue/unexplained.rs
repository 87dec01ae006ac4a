//! The deliveries of a message that ended without a settlement, in one number as backends store it.
/// Number of expired deliveries, and of those that had begun, since the last abandoned delivery.
///
/// Bits 0 to 15 count the expired deliveries. Bit 16 is set while the handling of the current
/// delivery has [begun](super::Queue::mark_begun). The bits above count the crashes: the deliveries
/// that expired with that bit set. Backends that change rows by SQL or Lua use the same form.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Unexplained(u32);

/// The bit of a delivery whose handling has begun.
const BEGUN: u32 = 1 << 16;

/// Largest number of crashes that is counted: the whole is then a positive `i32`, as SQL has it.
const MOST: u32 = 16_383;

impl Unexplained {
    #[allow(dead_code, reason = "used by the backends that store it")]
    pub(crate) const fn from_number(number: u32) -> Self {
        Self(number)
    }

    #[allow(dead_code, reason = "used by the backends that store it")]
    pub(crate) const fn number(self) -> u32 {
        self.0
    }

    /// Returns the number of expired deliveries.
    pub(crate) const fn expiries(self) -> u32 {
        self.0 % BEGUN
    }

    /// Returns the number of expired deliveries whose handling had begun.
    pub(crate) const fn crashes(self) -> u32 {
        self.0 / (2 * BEGUN)
    }

    /// Returns the number of expired deliveries of which nothing tells that they were tried.
    pub(crate) const fn untried(self) -> u32 {
        untried(self.expiries(), self.crashes())
    }

    /// Returns the counts after the current delivery has expired.
    pub(crate) fn expired(self) -> Self {
        let expiries = (self.expiries() + 1).min(BEGUN - 1);
        let crashes = (self.0 / BEGUN).div_ceil(2).min(MOST);
        Self(crashes * 2 * BEGUN + expiries)
    }

    /// Returns the counts with or without the mark of a delivery whose handling has begun.
    pub(crate) const fn marked(self, begun: bool) -> Self {
        Self(if begun { self.0 | BEGUN } else { self.0 & !BEGUN })
    }
}

/// Returns how many of these expired deliveries nothing tells to have been tried. The first one
/// before a recorded crash is taken for a crash, too: it made the message suspect.
pub(crate) const fn untried(expiries: u32, crashes: u32) -> u32 {
    expiries.saturating_sub(if crashes == 0 { 0 } else { crashes + 1 })
}

#[cfg(all(test, not(steadfast_loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_a_delivery_that_had_begun_is_a_crash() {
        let shown = |counts: Unexplained| (counts.expiries(), counts.crashes());
        let once = Unexplained::default().expired();
        assert_eq!(shown(once), (1, 0));
        assert_eq!(shown(once.marked(true)), (1, 0));
        let died = once.marked(true).expired();
        assert_eq!(shown(died), (2, 1));
        assert_eq!(shown(died.expired()), (3, 1));
        assert_eq!(shown(died.marked(true).marked(false).expired()), (3, 1));
        assert_eq!(shown((0..100_000).fold(died, |counts, _| counts.marked(true).expired())), (65_535, 16_383));
    }
}
