//! PURE: the rank of a candidate on a free lease, from the priorities of the candidates that are present.

use crate::lease::CandidateId;

/// The other candidates that would take a free lease, as last read. It delays a claim and grants no right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rivals {
    /// The priority of this candidate.
    pub own: i32,
    /// The present, healthy and undrained candidates besides this one, and their priorities.
    pub others: Vec<(CandidateId, i32)>,
}

impl Rivals {
    /// 0 for the highest priority, one more for each higher priority that another candidate has: equal ones share a rank.
    /// The last holder is not counted: the lease is free because that candidate is gone or has released it.
    pub fn rank(&self, last_holder: Option<&str>) -> u32 {
        let counted = self.others.iter().filter(|(id, _)| last_holder != Some(id.as_str()));
        let mut higher: Vec<i32> =
            counted.map(|(_, priority)| *priority).filter(|other| *other > self.own).collect();
        higher.sort_unstable();
        higher.dedup();
        u32::try_from(higher.len()).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(own: i32, others: &[(&str, i32)], last_holder: Option<&str>) -> u32 {
        let others = others.iter().map(|(id, priority)| (CandidateId::new(id).unwrap(), *priority));
        Rivals { own, others: others.collect() }.rank(last_holder)
    }

    #[test]
    fn the_highest_priority_comes_first_and_equal_ones_share_a_rank() {
        assert_eq!(rank(0, &[], None), 0);
        assert_eq!(rank(5, &[("b", 3), ("c", -1)], None), 0);
        assert_eq!(rank(3, &[("a", 5), ("c", -1)], None), 1);
        assert_eq!(rank(-1, &[("a", 5), ("b", 3)], None), 2);
        assert_eq!(rank(0, &[("b", 0), ("c", 0)], None), 0);
        assert_eq!(rank(0, &[("b", 7), ("c", 7)], None), 1);
    }

    #[test]
    fn the_last_holder_is_not_counted() {
        assert_eq!(rank(0, &[("a", 9), ("b", 1)], Some("a")), 1);
        assert_eq!(rank(0, &[("a", 9)], Some("a")), 0);
    }
}
