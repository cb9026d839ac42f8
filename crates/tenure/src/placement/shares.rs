//! How many shards each member should have.

/// The share of each member, given how many shards it owns now: all within one of each other, and together all shards.
///
/// The members come in an order that everybody agrees on. Where shards are left over after an even division, those get one
/// more who own more than an even part already, because it saves a move; then the first in order.
///
/// Not simply those who own *most*: that would change while shards are on their way, and with it the plan. Whoever owns more
/// than an even part and may keep one more, still owns more than an even part when it has given up the rest.
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
    fn what_is_left_over_stays_with_those_who_have_it() {
        assert_eq!(shares(&[3, 4, 3], 10), [3, 4, 3]);
        assert_eq!(shares(&[0, 5, 5], 10), [3, 4, 3]);
        assert_eq!(shares(&[3, 3, 5], 11), [4, 3, 4]);
    }

    #[test]
    fn who_may_have_one_more_is_the_same_before_during_and_after_the_moves() {
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
