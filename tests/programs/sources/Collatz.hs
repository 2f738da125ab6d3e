-- Collatz ROUNDS: lazy lists, maps, MVars and light threads.
import Control.Concurrent
import Control.Monad
import qualified Data.Map.Strict as M
import Data.Bits
import Data.List (foldl')
import System.Environment
import System.IO

lengthOf :: Int -> Int
lengthOf = go 1 where
  go n 1 = n
  go n x = go (n + 1) (if even x then x `div` 2 else 3 * x + 1)

work :: Int -> Int
work from = M.foldlWithKey' (\h k v -> (h * 31 + k) `xor` v) from m
  where m = foldl' (\a x -> M.insertWith (+) (lengthOf x) x a) M.empty [from .. from + 6000]

main :: IO ()
main = do
  [text] <- getArgs
  hSetBuffering stdout LineBuffering
  forM_ [1 .. read text] $ \r -> do
    boxes <- forM [0 .. 3] $ \w -> do
      box <- newEmptyMVar
      _ <- forkIO (putMVar box $! work (r * 24000 + w * 6000 + 1))
      return box
    found <- mapM takeMVar boxes
    when (r `mod` (20 :: Int) == 0) $ putStrLn (show r ++ " " ++ show found)
