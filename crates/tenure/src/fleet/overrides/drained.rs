//! The drained members of a fleet, in the order in which they were drained.

use crate::lease::CandidateId;

/// Ids of drained members, the oldest drain first. A linear search is enough: all ids fit into 4 KiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained(Vec<CandidateId>);

impl Drained {
    /// Whether this member is drained.
    pub fn contains(&self, member: &CandidateId) -> bool {
        self.0.contains(member)
    }

    /// Drains a member. Returns `false` if it was drained before; then it keeps its position.
    pub fn insert(&mut self, member: CandidateId) -> bool {
        let new = !self.contains(&member);
        if new {
            self.0.push(member);
        }
        new
    }

    /// Ends the drain of a member. Returns `false` if it was not drained.
    pub fn remove(&mut self, member: &CandidateId) -> bool {
        let before = self.0.len();
        self.0.retain(|drained| drained != member);
        self.0.len() < before
    }

    /// Ends all drains.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// The drained members, the oldest drain first.
    pub fn iter(&self) -> std::slice::Iter<'_, CandidateId> {
        self.0.iter()
    }

    /// How many members are drained.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no member is drained.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<CandidateId> for Drained {
    fn from_iter<I: IntoIterator<Item = CandidateId>>(members: I) -> Self {
        let mut drained = Drained::default();
        for member in members {
            drained.insert(member);
        }
        drained
    }
}

impl<'a> IntoIterator for &'a Drained {
    type Item = &'a CandidateId;
    type IntoIter = std::slice::Iter<'a, CandidateId>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<const N: usize> From<[CandidateId; N]> for Drained {
    fn from(members: [CandidateId; N]) -> Self {
        members.into_iter().collect()
    }
}
