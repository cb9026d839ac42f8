//! PURE: the share of each member: how many shards it should own.

/// The share of each member, given how many shards it owns now. The shares differ by at most one, and their sum is the number
/// of shards.
///
/// All callers pass the members in the same order. If shards are left over after an even division, they go first to members
/// that own more than an even part already, because this saves a move; then to the first in order.
///
/// They do not simply go to the members that own the *most*: that would change while shards are moving, and the plan would
/// change with it. A member that owns more than an even part and may keep one more still owns more than an even part after it
/// has released the rest.
pub(super) fn shares(owned: &[usize], shards: usize) -> Vec<usize> {
    if owned.is_empty() {
        return Vec::new();
    }
    let (even, left_over) = (shards / owned.len(), shards % owned.len());
    let mut shares = vec![even; owned.len()];
    let above = (0..owned.len()).filter(|member| owned[*member] > even);
    let others = (0..owned.len()).filter(|member| owned[*member] <= even);
    for member in above.chain(others).take(left_over) {
        shares[member] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_even_number_is_divided_evenly() {
        assert_eq!(shares(&[0, 0, 0], 9), [3, 3, 3]);
        assert_eq!(shares(&[9, 0, 0], 9), [3, 3, 3]);
        assert_eq!(shares(&[0; 5], 10), [2; 5]);
    }

    #[test]
    fn left_over_shards_stay_with_their_owners() {
        assert_eq!(shares(&[3, 4, 3], 10), [3, 4, 3]);
        assert_eq!(shares(&[0, 5, 5], 10), [3, 4, 3]);
        assert_eq!(shares(&[3, 3, 5], 11), [4, 3, 4]);
    }

    #[test]
    fn the_members_with_one_more_are_the_same_before_during_and_after_the_moves() {
        for owned in [[5, 5, 0], [4, 5, 0], [4, 4, 0], [5, 3, 1], [4, 3, 2], [4, 3, 3]] {
            assert_eq!(shares(&owned, 10), [4, 3, 3], "while they own {owned:?}");
        }
    }

    #[test]
    fn with_fewer_shards_than_members_some_have_none() {
        assert_eq!(shares(&[0, 0, 1, 1], 2), [0, 0, 1, 1]);
        assert_eq!(shares(&[0, 0, 0, 2], 2), [1, 0, 0, 1]);
        assert_eq!(shares(&[0, 0], 0), [0, 0]);
        assert!(shares(&[], 7).is_empty());
    }
}
